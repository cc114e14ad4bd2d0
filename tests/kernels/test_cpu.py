"""The compiled kernel: it agrees with the definition, and its bits depend on nothing else."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import sruserve.kernels.cpu.library as cpu
from sruserve.kernels.cell import Cell, Kind
from sruserve.kernels.ragged import single
from sruserve.kernels.reference.scan import reference_scan
from tests.kernels.instruction_sets import EACH_SET, use
from tests.kernels.scans import (
    INF,
    NAN,
    TANH,
    VARIANTS,
    Case,
    assert_same_bits,
    assert_same_pattern,
    case,
    spoil,
)

pytestmark = pytest.mark.usefixtures("poisoned_memory")

DTYPES = [torch.float32, torch.bfloat16]
EACH_VARIANT = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
LENGTHS = [3, 7, 1, 0, 40, 2]


@EACH_SET
@EACH_VARIANT
@pytest.mark.parametrize("width", [41, 70, 128, 150])
def test_it_agrees_with_the_definition(variant: dict[str, Any], width: int) -> None:
    work = case(width, LENGTHS, **variant)
    torch.testing.assert_close(work.run(), work.run(reference_scan), rtol=1e-5, atol=2e-6)


@EACH_SET
@EACH_VARIANT
def test_bfloat16_is_the_float32_result_rounded(variant: dict[str, Any]) -> None:
    work = case(70, LENGTHS, dtype=torch.bfloat16, **variant)
    residual = None if work.residual is None else work.residual.float()
    h, states = replace(work, u=work.u.float(), residual=residual).run()
    assert_same_bits(work.run(), (h.bfloat16(), states))


@EACH_SET
@EACH_DTYPE
@EACH_VARIANT
def test_a_channel_has_the_same_bits_in_any_width_and_place(
    variant: dict[str, Any], dtype: torch.dtype
) -> None:
    work = case(150, [5, 0, 2, 3], dtype=dtype, **variant)
    h, states = work.run()
    for width in range(1, 71):
        first = width * 7 % (150 - width)
        part, after = work.channels(first, first + width).run()
        assert torch.equal(part, h[:, first : first + width]), width
        place = slice(work.column + first, work.column + first + width)
        assert torch.equal(after[:, place], states[:, place]), width


@EACH_SET
@given(
    cuts=st.sets(st.integers(1, 59), max_size=6),
    width=st.integers(1, 140),
    dtype=st.sampled_from(DTYPES),
    variant=st.sampled_from([v for v in VARIANTS.values() if "backward_from" not in v]),
)
def test_any_split_of_time_gives_the_same_bits(
    cuts: set[int], width: int, dtype: torch.dtype, variant: dict[str, Any]
) -> None:
    work = case(width, [60], dtype=dtype, **variant)
    states = work.batch.states.clone()
    edges = [0, *sorted(cuts), 60]
    parts = []
    for first, end in pairwise(edges):
        part = work.rows(first, end, single(states, end - first))
        parts.append(cpu.cpu_scan(*part.arguments(), **part.options))
    assert_same_bits((torch.cat(parts), states), work.run())


@EACH_SET
@EACH_DTYPE
@EACH_VARIANT
def test_a_sequence_has_the_same_bits_in_any_company(
    variant: dict[str, Any], dtype: torch.dtype
) -> None:
    work = case(70, LENGTHS, dtype=dtype, **variant)
    h, states = work.run()
    for i, (first, end) in enumerate(pairwise(work.batch.offsets.tolist())):
        alone, after = work.alone(i).run()
        assert torch.equal(alone, h[first:end])
        if (target := int(work.batch.target[i])) >= 0:
            assert torch.equal(after[target], states[target])


@EACH_SET
@EACH_DTYPE
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("lengths", [[200], [9, 0, 150, 31, 1, 70], [1] * 300], ids=len)
def test_the_number_of_threads_changes_no_bit(dtype: torch.dtype, lengths: list[int]) -> None:
    work = case(300, lengths, dtype=dtype, backward_from=170)
    torch.set_num_threads(1)
    serial = work.run()
    for count in (2, 3):
        torch.set_num_threads(count)
        assert_same_bits(work.run(), serial)


def test_calls_from_several_python_threads_do_not_disturb_each_other() -> None:
    works = [case(256, [60, 9, 100], seed=seed) for seed in range(4)]
    expected = [work.run() for work in works]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            for ours, theirs in zip(pool.map(Case.run, works), expected, strict=True):
                assert_same_bits(ours, theirs)


def test_an_empty_sequence_carries_its_state_over() -> None:
    work = case(70, [0, 0, 0, 0])
    _, states = work.run()
    place = slice(work.column, work.column + 70)
    before = work.batch.states.clone()
    before[3, place] = 0  # sequence 1 starts from zeros
    before[7, place] = before[6, place]
    assert torch.equal(states, before)


def test_no_sequences_is_no_work() -> None:
    h, _ = case(70, []).run()
    assert h.shape == (0, 70)


def test_rows_past_the_last_offset_are_padding() -> None:
    work = case(70, [5, 6])
    assert work.residual is not None
    padded = replace(
        work,
        u=torch.cat([work.u, work.u.new_full((3, 210), NAN)]),
        residual=torch.cat([work.residual, work.residual.new_full((3, 70), NAN)]),
    )
    (h, states), expected = padded.run(), work.run()
    assert h.shape == (14, 70)
    assert_same_bits((h[:11], states), expected)


@EACH_SET
@EACH_DTYPE
@EACH_VARIANT
@pytest.mark.parametrize("place", ["u", "state", "weight", "bias"])
def test_nan_and_infinity_spread_as_in_the_definition(
    place: str, dtype: torch.dtype, variant: dict[str, Any]
) -> None:
    work = case(67, [6, 3, 0, 9], dtype=dtype, **variant)
    tensors = {"u": work.u, "state": work.batch.states, "weight": work.weight_c, "bias": work.bias}
    tensor = tensors[place]
    spoil(work.u if tensor is None else tensor, work.cell.kind)
    assert_same_pattern(work.run(), work.run(reference_scan))


@EACH_SET
@EACH_DTYPE
@pytest.mark.parametrize(
    "options",
    [{}, {"scale": 1.3, "activation": TANH}, {"backward_from": 30}, {"kind": Kind.QRNN}],
    ids=str,
)
def test_nan_and_infinity_in_the_residual_spread_as_in_the_definition(
    dtype: torch.dtype, options: dict[str, Any]
) -> None:
    work = case(67, [6, 3, 0, 9], dtype=dtype, **options)
    assert work.residual is not None
    spoil(work.residual)
    assert_same_pattern(work.run(), work.run(reference_scan))


def forget_gate(x: Tensor) -> Tensor:
    """sigmoid(x) alone: with z = 0 and c = 1, the new c is the forget gate."""
    u = torch.cat([torch.zeros_like(x), x, x])[None]
    states, zeros = torch.ones(1, len(x)), torch.zeros(2, len(x))
    cpu.cpu_scan(u, None, zeros, zeros, single(states, 1), 0, Cell())
    return states[0]


def output(c: Tensor, dtype: torch.dtype, *, tanh: bool) -> Tensor:
    """h as a function of c: with both gates open, c passes through unchanged."""
    u = torch.cat([torch.zeros_like(c), *[torch.full_like(c, INF)] * 2])[None].to(dtype)
    weight = torch.full_like(c, 1e-30).copysign(c).expand(2, -1).contiguous()  # 0 * inf is NaN
    states = c[None].clone()
    cell = Cell(activation=TANH) if tanh else Cell()
    return cpu.cpu_scan(u, None, weight, torch.zeros_like(weight), single(states, 1), 0, cell)[0]


@EACH_SET
def test_the_sigmoid_is_exact_to_rounding() -> None:
    x = torch.cat([torch.linspace(-120, 120, 200_003), torch.linspace(-1, 1, 50_001)])
    gate = forget_gate(x)
    expected = torch.sigmoid(x.double())
    assert (gate - expected).abs().max() < 1.5e-7
    ordinary = x > -87  # below, the gate is subnormal
    assert (gate / expected - 1)[ordinary].abs().max() < 6e-6
    assert forget_gate(torch.tensor([INF, -INF])).tolist() == [1, 0]
    assert forget_gate(torch.tensor([NAN])).isnan().all()


@EACH_SET
def test_the_tanh_is_exact_to_rounding() -> None:
    x = torch.cat([torch.linspace(-20, 20, 100_003), torch.logspace(-37, 0, 10_000)])
    h = output(x, torch.float32, tanh=True)
    assert (h / torch.tanh(x.double()) - 1).nan_to_num().abs().max() < 4e-7
    assert output(torch.tensor([INF, -INF]), torch.float32, tanh=True).tolist() == [1, -1]
    assert output(torch.tensor([NAN]), torch.float32, tanh=True).isnan().all()


@EACH_SET
def test_bfloat16_outputs_round_to_the_nearest_even() -> None:
    g = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (50_000,), generator=g, dtype=torch.int64)
    ties = (bits[:10_000] & ~0xFFFF) | 0x8000
    ends = torch.tensor([0x7F7FFFFF, 0x7F7F7FFF, 0x7FFFFFFF, -1, 0x7F800001, 0x7F800000])
    c = torch.cat([bits, ties, ends]).to(torch.int32).view(torch.float32)
    h, expected = output(c, torch.bfloat16, tanh=False), c.bfloat16()
    assert torch.equal(h.isnan(), expected.isnan())
    assert torch.equal(h[~h.isnan()], expected[~h.isnan()])


def test_an_unknown_instruction_set_is_refused() -> None:
    before = cpu.instruction_set()
    assert not use("mmx")
    assert cpu.instruction_set() == before


def bad(work: Case, **batch: Tensor) -> Case:
    return replace(work, batch=replace(work.batch, **batch))


def wrong_cases() -> dict[str, Case]:
    work = case(20, [4, 5])
    assert work.residual is not None
    assert work.weight_c is not None
    lrn, wide = case(20, [4, 5], kind=Kind.LRN), case(20, [4, 5], blocks=4)
    return {
        "residual-of-lrn": replace(lrn, residual=work.residual),
        "residual-beside-a-block": replace(wide, residual=work.residual),
        "weight-of-lrn": replace(lrn, weight_c=work.weight_c),
        "no-bias": replace(work, bias=None),
        "u-strided": replace(work, u=work.u.T.contiguous().T),
        "u-float64": replace(work, u=work.u.double()),
        "u-two-blocks": replace(work, u=work.u[:, :40].contiguous()),
        "u-few-rows": replace(work, u=work.u[:8], residual=work.residual[:8]),
        "residual-dtype": replace(work, residual=work.residual.bfloat16()),
        "residual-short": replace(work, residual=work.residual[:8]),
        "weight-bfloat16": replace(work, weight_c=work.weight_c.bfloat16()),
        "bias-wide": replace(work, bias=torch.zeros(2, 21)),
        "bias-strided": replace(work, bias=torch.zeros(20, 2).T),
        "column-past-end": replace(work, column=9),
        "column-negative": replace(work, column=-1),
        "backward-past-end": replace(work, options={"backward_from": 21}),
        "offsets-int32": bad(work, offsets=work.batch.offsets.int()),
        "offsets-fall": bad(work, offsets=torch.tensor([0, 11, 9])),
        "offsets-not-from-0": bad(work, offsets=torch.tensor([1, 4, 9])),
        "offsets-past-end": bad(work, offsets=torch.tensor([0, 4, 10])),
        "offsets-short": bad(work, offsets=torch.tensor([0, 9])),
        "source-past-end": bad(work, source=torch.tensor([0, 4])),
        "source-below": bad(work, source=torch.tensor([-2, 1])),
        "target-past-end": bad(work, target=torch.tensor([0, 4])),
        "target-below": bad(work, target=torch.tensor([0, -2])),
        "target-short": bad(work, target=torch.tensor([0])),
        "states-float64": bad(work, states=work.batch.states.double()),
        "states-strided": bad(work, states=torch.zeros(28, 4).T),
        "states-on-meta": bad(work, states=torch.zeros(4, 28, device="meta")),
    }


@pytest.mark.parametrize("name", wrong_cases() if cpu.available() else [])
def test_arguments_that_do_not_fit_are_refused_before_anything_is_written(name: str) -> None:
    work = wrong_cases()[name]
    before = work.batch.states.clone()
    with pytest.raises((ValueError, IndexError)):
        cpu.cpu_scan(*work.arguments(), **work.options)
    assert before.is_meta or torch.equal(work.batch.states, before)
