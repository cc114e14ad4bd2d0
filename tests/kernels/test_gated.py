"""The gated layers: the kernel agrees with the definition, and its bits depend on nothing else."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sruserve.kernels import GatedCell, GatedKind, PanelWeight, RaggedBatch, single
from sruserve.kernels.cpu.gated import cpu_gated_scan
from sruserve.kernels.reference.gated import reference_gated_scan
from tests.kernels.instruction_sets import EACH_SET

NAN = float("nan")
pytestmark = pytest.mark.usefixtures("poisoned_memory")

DTYPES = [torch.float32, torch.bfloat16]
LENGTHS = [3, 7, 1, 0, 12, 2]
PROJECTED = 5
EDGE = 2  # columns of a state row before h, and after c
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
VARIANTS = [(kind, False) for kind in GatedKind] + [(GatedKind.LSTM, True)]
EACH_VARIANT = pytest.mark.parametrize(
    ("kind", "projected"), VARIANTS, ids=[f"{k.name}{'-projected' * p}" for k, p in VARIANTS]
)


@dataclass(frozen=True)
class Case:
    """One call, repeatable: `run` leaves the states alone."""

    u: Tensor
    cell: GatedCell
    batch: RaggedBatch

    def run(self, scan: object = cpu_gated_scan) -> tuple[Tensor, Tensor]:
        states = self.batch.states.clone()
        out = torch.empty(len(self.u), self.cell.outputs, dtype=self.u.dtype)
        assert callable(scan)
        scan(self.u, self.cell, replace(self.batch, states=states), out)
        return out, states

    def part(self, first: int, last: int, states: Tensor) -> "Case":
        """Rows of a lone sequence."""
        return replace(self, u=self.u[first:last], batch=single(states, last - first))

    def alone(self, i: int) -> "Case":
        """Sequence `i` without the others."""
        offsets, batch = self.batch.offsets, self.batch
        own = RaggedBatch(
            offsets[i : i + 2] - offsets[i],
            batch.states,
            batch.source[i : i + 1],
            batch.target[i : i + 1],
        )
        return replace(self, u=self.u[offsets[i] : offsets[i + 1]], batch=own)


def case(
    kind: GatedKind,
    width: int,
    lengths: list[int],
    dtype: torch.dtype = torch.float32,
    projected: bool = False,
    backward: bool = False,
    seed: int = 0,
) -> Case:
    g = torch.Generator().manual_seed(seed)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=g)

    def recurrent(gates: int, outputs: int, inputs: int, biased: bool = True) -> PanelWeight:
        weight = random(gates * outputs, inputs) * inputs**-0.5
        return PanelWeight.of(weight.to(dtype), random(gates * outputs) if biased else None, gates)

    outputs = PROJECTED if projected else width
    second = None
    gates = kind.blocks
    if projected:
        second = recurrent(1, outputs, width, biased=False)
    elif kind is GatedKind.GRU_RESET_BEFORE:
        gates, second = 2, recurrent(1, width, width)
    cell = GatedCell(
        kind=kind,
        first=recurrent(gates, width, outputs),
        second=second,
        column=EDGE,
        cell_column=EDGE + outputs,
        backward=backward,
    )
    count = len(lengths)
    batch = RaggedBatch(
        torch.tensor([0, *lengths]).cumsum(0),
        random(2 * count + 1, outputs + width + 2 * EDGE),
        torch.tensor([-1 if i == 1 else i for i in range(count)], dtype=torch.int64),
        torch.tensor([-1 if i == 2 else count + i for i in range(count)], dtype=torch.int64),
    )
    return Case(random(sum(lengths), kind.blocks * width).to(dtype), cell, batch)


def assert_same_bits(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


@EACH_SET
@EACH_VARIANT
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("width", [7, 16, 41, 130])
def test_it_agrees_with_the_definition(
    kind: GatedKind, projected: bool, width: int, backward: bool
) -> None:
    work = case(kind, width, [*LENGTHS, *[1] * 60], projected=projected, backward=backward)
    torch.testing.assert_close(work.run(), work.run(reference_gated_scan), rtol=1e-5, atol=1e-5)


@EACH_SET
@EACH_VARIANT
def test_bfloat16_is_the_float32_result_rounded(kind: GatedKind, projected: bool) -> None:
    work = case(kind, 41, LENGTHS, torch.bfloat16, projected)
    first, second = work.cell.first, work.cell.second
    cell = replace(
        work.cell,
        first=replace(first, panels=first.panels.float()),
        second=None if second is None else replace(second, panels=second.panels.float()),
    )
    h, states = replace(work, u=work.u.float(), cell=cell).run()
    assert_same_bits(work.run(), (h.bfloat16(), states))


@EACH_SET
@given(
    cuts=st.sets(st.integers(1, 19), max_size=5),
    width=st.integers(PROJECTED, 80),
    dtype=st.sampled_from(DTYPES),
    variant=st.sampled_from(VARIANTS),
)
def test_any_split_of_time_gives_the_same_bits(
    cuts: set[int], width: int, dtype: torch.dtype, variant: tuple[GatedKind, bool]
) -> None:
    kind, projected = variant
    work = case(kind, width, [20], dtype, projected)
    work = replace(work, batch=single(work.batch.states, 20))
    states, parts = work.batch.states, []
    for first, last in pairwise([0, *sorted(cuts), 20]):
        h, states = work.part(first, last, states).run()
        parts.append(h)
    assert_same_bits((torch.cat(parts), states), work.run())


@EACH_SET
@EACH_DTYPE
@EACH_VARIANT
def test_a_sequence_has_the_same_bits_in_any_company(
    kind: GatedKind, projected: bool, dtype: torch.dtype
) -> None:
    work = case(kind, 41, [*LENGTHS, *[2] * 50], dtype, projected)
    h, states = work.run()
    offsets = work.batch.offsets
    for i in range(len(LENGTHS) + 1):
        alone, after = work.alone(i).run()
        assert torch.equal(alone, h[offsets[i] : offsets[i + 1]])
        if (target := int(work.batch.target[i])) >= 0:
            assert torch.equal(after[target], states[target])


@EACH_DTYPE
@EACH_VARIANT
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("lengths", [[9], [5, 0, 12, 1], [1] * 120], ids=len)
def test_the_number_of_threads_changes_no_bit(
    kind: GatedKind, projected: bool, dtype: torch.dtype, lengths: list[int]
) -> None:
    work = case(kind, 520, lengths, dtype, projected)
    torch.set_num_threads(1)
    serial = work.run()
    for count in (2, 3):
        torch.set_num_threads(count)
        assert_same_bits(work.run(), serial)


def test_calls_from_several_python_threads_do_not_disturb_each_other() -> None:
    works = [case(GatedKind.LSTM, 256, [6, 9, 10], seed=seed) for seed in range(4)]
    expected = [work.run() for work in works]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for ours, theirs in zip(pool.map(Case.run, works), expected, strict=True):
                assert_same_bits(ours, theirs)


@EACH_VARIANT
def test_an_empty_sequence_carries_its_state_over(kind: GatedKind, projected: bool) -> None:
    work = case(kind, 20, [0], projected=projected)
    _, after = work.run()
    used = work.cell.outputs + (20 if kind is GatedKind.LSTM else 0)
    assert torch.equal(after[1, EDGE : EDGE + used], work.batch.states[0, EDGE : EDGE + used])


def test_no_sequences_is_no_work() -> None:
    h, _ = case(GatedKind.GRU, 20, []).run()
    assert h.shape == (0, 20)


def test_columns_of_wider_tensors_are_read_and_written_in_place() -> None:
    work = case(GatedKind.GRU, 20, [4, 5])
    wide = torch.cat((torch.full((9, 7), NAN), work.u, torch.full((9, 1), NAN)), 1)
    out = torch.full((9, 50), 3.0)
    cpu_gated_scan(wide[:, 7:67], work.cell, work.batch, out[:, 25:45])
    assert torch.equal(out[:, 25:45], case(GatedKind.GRU, 20, [4, 5]).run()[0])
    assert bool((out[:, :25] == 3).all())
    assert bool((out[:, 45:] == 3).all())


@EACH_SET
@pytest.mark.parametrize("kind", [GatedKind.RNN_RELU, GatedKind.LSTM, GatedKind.GRU])
def test_nan_in_the_input_stays_nan(kind: GatedKind) -> None:
    work = case(kind, 20, [4])
    work.u[1, 3] = NAN
    h, states = work.run()
    assert not h[0].isnan().any()
    assert h[1, 3].isnan()
    assert h[2:].isnan().all()
    assert states[1, EDGE : EDGE + 20].isnan().all()


def wrong_cases() -> dict[str, Case]:
    work = case(GatedKind.LSTM, 20, [4, 5])
    cell, batch = work.cell, work.batch
    return {
        "u-float64": replace(work, u=work.u.double()),
        "u-other-dtype": replace(work, u=work.u.bfloat16()),
        "u-narrow": replace(work, u=work.u[:, :60]),
        "u-strided": replace(work, u=work.u.T.contiguous().T),
        "u-few-rows": replace(work, u=work.u[:8]),
        "column-past-end": replace(work, cell=replace(cell, column=25)),
        "column-negative": replace(work, cell=replace(cell, column=-1)),
        "cell-column-past-end": replace(work, cell=replace(cell, cell_column=25)),
        "offsets-int32": replace(work, batch=replace(batch, offsets=batch.offsets.int())),
        "offsets-fall": replace(work, batch=replace(batch, offsets=torch.tensor([0, 11, 9]))),
        "offsets-not-from-0": replace(work, batch=replace(batch, offsets=torch.tensor([1, 4, 9]))),
        "source-past-end": replace(work, batch=replace(batch, source=torch.tensor([0, 5]))),
        "target-below": replace(work, batch=replace(batch, target=torch.tensor([0, -2]))),
        "target-short": replace(work, batch=replace(batch, target=torch.tensor([0]))),
        "states-float64": replace(work, batch=replace(batch, states=batch.states.double())),
    }


@pytest.mark.parametrize("name", wrong_cases())
def test_arguments_that_do_not_fit_are_refused_before_anything_is_written(name: str) -> None:
    work = wrong_cases()[name]
    before, out = work.batch.states.clone(), torch.zeros(len(work.u), 20, dtype=work.u.dtype)
    with pytest.raises((ValueError, IndexError)):
        cpu_gated_scan(work.u, work.cell, work.batch, out)
    assert torch.equal(work.batch.states, before)
    assert not out.any()


def test_off_the_cpu_the_plain_weight_is_laid_out_once() -> None:
    recurrent = PanelWeight.of(torch.empty(4 * 5, 5, device="meta"), None, 4)
    assert recurrent.plain()[0] is recurrent.plain()[0]


def test_work_memory_that_is_too_small_is_reported_as_such() -> None:
    layer = GatedCell(
        kind=GatedKind.RNN_TANH, first=PanelWeight.of(torch.eye(5), None, 1), column=0
    )
    with pytest.raises(ValueError, match="work memory"):
        cpu_gated_scan(
            torch.zeros(2, 5),
            layer,
            single(torch.zeros(1, 5), 2),
            torch.zeros(2, 5),
            work=torch.zeros(63),
        )
