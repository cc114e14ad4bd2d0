"""The compiled stack: it agrees with its layers, and its bits depend on nothing else."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from sruserve.kernels import Activation, Cell, CellLayer, Kind, Norm, NormKind, RaggedBatch
from sruserve.kernels.cpu.stack import CompiledStack, compilable
from sruserve.kernels.linear import PackedLinear, PanelLinear
from tests.kernels.instruction_sets import EACH_SET

WIDTH, VOCABULARY = 70, 30  # more than one panel of 64 columns, and a tail of a vector
LENGTHS = [3, 7, 1, 0, 120, 2]
TANH = Activation.TANH


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def layer(cell: Cell, column: int, *, inputs: int = WIDTH, **parts: Any) -> CellLayer:
    """A layer with random weights and a bias. projected: the width of its projection."""
    projected = parts.pop("projected", None)
    if projected is not None:
        parts["projection"] = PanelLinear(random(projected, inputs) / inputs**0.5, None)
        inputs = projected
    if cell.gated_by_state:
        parts |= {"weight_c": random(2, WIDTH, seed=1), "bias": random(2, WIDTH, seed=2)}
    weight = random(cell.blocks * WIDTH, inputs, seed=3) / inputs**0.5
    linear = PanelLinear(weight, random(len(weight), seed=4))
    return CellLayer(linear=linear, cell=cell, column=column, **parts)


def norm(kind: NormKind, size: int = WIDTH, biased: bool = True) -> Norm:
    return Norm(random(size, seed=5), random(size, seed=6) if biased else None, kind)


RMS = NormKind.RMS
FORMS: dict[str, dict[str, Any]] = {
    "sru": {"cell": Cell()},
    "highway-of-the-input": {"cell": Cell(scale=1.3), "highway_is_input": True},
    "highway-block": {"cell": Cell(blocks=4, activation=TANH, updated_reset=True)},
    "both-ways": {"cell": Cell(), "backward_from": WIDTH // 2},
    "layer-norm": {"cell": Cell(), "norm": norm(NormKind.LAYER)},
    "unbiased-norm-after": {"cell": Cell(), "norm": norm(NormKind.UNBIASED), "norm_after": True},
    "deviation-norm": {"cell": Cell(), "norm": norm(NormKind.STD)},
    "projection": {"cell": Cell(), "projected": 20, "norm": norm(NormKind.LAYER, biased=False)},
    "lrn": {
        "cell": Cell(kind=Kind.LRN, activation=TANH),
        "inner_norm": norm(RMS, 3 * WIDTH, biased=False),
        "inner_bias": random(3 * WIDTH, seed=7),
    },
    "qrnn": {"cell": Cell(kind=Kind.QRNN, zoneout=0.2), "highway_is_input": True},
}
EACH_FORM = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def stack_of(form: dict[str, Any]) -> list[CellLayer]:
    """Two layers of a form, whose states lie beside each other."""
    return [layer(column=1 + i * WIDTH, **form) for i in range(2)]


def ragged(seed: int = 8) -> RaggedBatch:
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    source = torch.arange(len(LENGTHS))
    states = random(2 * len(LENGTHS), 2 * WIDTH + 2, seed=seed)
    return RaggedBatch(offsets, states, source, source + len(LENGTHS))


@EACH_SET
@EACH_FORM
def test_a_stack_agrees_with_its_layers_one_after_another(form: dict[str, Any]) -> None:
    layers, x = stack_of(form), random(sum(LENGTHS), WIDTH, seed=9)
    assert compilable(layers)
    compiled, separate = ragged(), ragged()
    expected = x
    for each in layers:
        expected = each(expected, separate)
    torch.testing.assert_close(
        CompiledStack(layers, None)(x, compiled), expected, rtol=0, atol=1e-5
    )
    torch.testing.assert_close(compiled.states, separate.states, rtol=0, atol=1e-5)


@EACH_SET
@EACH_FORM
def test_a_sequence_has_the_same_bits_alone_and_in_company(form: dict[str, Any]) -> None:
    x, together = random(sum(LENGTHS), WIDTH, seed=9), ragged()
    stack = CompiledStack(stack_of(form), None)
    whole = stack(x, together)
    for sequence, (first, end) in enumerate(pairwise(together.offsets.tolist())):
        alone = ragged()
        batch = RaggedBatch(
            torch.tensor([0, end - first]),
            alone.states,
            alone.source[sequence : sequence + 1],
            alone.target[sequence : sequence + 1],
        )
        assert torch.equal(stack(x[first:end], batch), whole[first:end])
        row = len(LENGTHS) + sequence
        assert torch.equal(alone.states[row], together.states[row])


@EACH_FORM
def test_sequences_in_slices_have_the_bits_of_single_ones(form: dict[str, Any]) -> None:
    check_slices(CompiledStack(stack_of(form), None))


def check_slices(stack: CompiledStack) -> None:
    """Compare sequences that threads take in slices with each alone; two layers' states."""
    lengths = [3, 0, *(count % 9 + 1 for count in range(90)), 61, 0, 2]
    count, x = len(lengths), random(sum(lengths), WIDTH, seed=9)
    offsets, rows = torch.tensor([0, *lengths]).cumsum(0), torch.arange(count)
    states, before = random(2 * count, 2 * WIDTH + 2, seed=8), torch.get_num_threads()
    compiled = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert stack.slice_rows(len(x), max(lengths)) == (128 if threads == 1 else 64)
            batch = RaggedBatch(offsets, states.clone(), rows, rows + count)
            compiled.append((stack(x, batch), batch.states))
    finally:
        torch.set_num_threads(before)
    alone = []
    for sequence, (first, end) in enumerate(pairwise(offsets.tolist())):
        place = torch.tensor([sequence])
        batch = RaggedBatch(torch.tensor([0, end - first]), states, place, place + count)
        alone.append(stack(x[first:end], batch))
    for outputs, end_states in compiled:
        assert torch.equal(outputs, torch.cat(alone))
        assert torch.equal(end_states, states)


def test_threads_share_products_of_long_sequences_and_of_large_weights() -> None:
    stack = CompiledStack(stack_of(FORMS["sru"]), None)
    wide = PanelLinear(torch.zeros(3 * 512, 512), None)
    gates, bias = torch.zeros(2, 512), torch.zeros(2, 512)
    of_wide = CellLayer(linear=wide, cell=Cell(), column=0, weight_c=gates, bias=bias)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert [stack.slice_rows(1024, longest) for longest in (1, 128, 129)] == [128, 128, 0]
        assert stack.slice_rows(500, 1) == 0
        assert CompiledStack([of_wide], None).slice_rows(1024, 1) == 0
        torch.set_num_threads(1)
        assert [stack.slice_rows(1024, longest) for longest in (1023, 1024)] == [128, 0]
    finally:
        torch.set_num_threads(before)


@EACH_SET
@pytest.mark.parametrize("name", [name for name in FORMS if name != "both-ways"])
def test_chunks_of_a_sequence_have_the_bits_of_the_whole(name: str) -> None:
    form = FORMS[name]
    x, states = random(100, WIDTH, seed=9), torch.zeros(1, 2 * WIDTH + 2)
    stack, row = CompiledStack(stack_of(form), None), torch.tensor([0])
    whole = stack(x, RaggedBatch(torch.tensor([0, 100]), states.clone(), row - 1, row))
    chunks = []
    for first, end in pairwise((0, 1, 50, 51, 53, 100)):
        batch = RaggedBatch(torch.tensor([0, end - first]), states, row, row)
        chunks.append(stack(x[first:end], batch))
    assert torch.equal(torch.cat(chunks), whole)


def some_ids() -> Tensor:
    return torch.randint(VOCABULARY, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("max_projected", [0, 1 << 20])
def test_ids_have_the_bits_of_their_rows_with_any_number_of_threads(
    threads: int, max_projected: int
) -> None:
    table, ids = random(VOCABULARY, WIDTH, seed=10), some_ids()
    stack = CompiledStack(stack_of(FORMS["layer-norm"]), table, max_projected=max_projected)
    expected = stack(table[ids], ragged())
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(stack(ids, ragged()), expected)
    finally:
        torch.set_num_threads(before)


@EACH_SET
@EACH_FORM
def test_products_picked_by_id_have_the_bits_of_new_ones(form: dict[str, Any]) -> None:
    words = 300  # more than are multiplied together
    table = random(words, WIDTH, seed=10)
    ids = torch.randint(words, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0))
    stack, picked, multiplied = CompiledStack(stack_of(form), table), ragged(), ragged()
    assert stack.spared
    assert torch.equal(stack(ids, picked), stack(table[ids], multiplied))
    assert torch.equal(picked.states, multiplied.states)


def test_slices_pick_products_by_id() -> None:
    table, lengths = random(VOCABULARY, WIDTH), torch.arange(200) % 5 + 1
    offsets, rows = torch.cat((torch.tensor([0]), lengths.cumsum(0))), torch.arange(200)
    ids = torch.arange(int(offsets[-1])) % VOCABULARY
    stack, states = CompiledStack(stack_of(FORMS["sru"]), table), torch.zeros(200, 2 * WIDTH + 1)
    assert stack.slice_rows(len(ids), 5)
    batch = RaggedBatch(offsets, states, torch.full_like(rows, -1), rows)
    assert torch.equal(stack(ids, batch), stack(table[ids], batch))


def test_products_are_picked_by_id_from_a_table_that_is_small_enough() -> None:
    layers, table, ids = stack_of(FORMS["projection"]), random(VOCABULARY, WIDTH), some_ids()
    numbers = VOCABULARY * 3 * WIDTH
    picks = CompiledStack(layers, table, max_projected=numbers)
    multiplies = CompiledStack(layers, table, max_projected=numbers - 1)
    assert (picks.spared, multiplies.spared) == (WIDTH * 20 + 20 * 3 * WIDTH, 0)
    expected = picks(ids, ragged())
    layers[0].linear.weight.zero_()
    assert torch.equal(picks(ids, ragged()), expected)
    assert not torch.equal(multiplies(ids, ragged()), expected)


def test_only_small_work_memory_is_kept() -> None:
    x, layers = random(sum(LENGTHS), WIDTH, seed=9), stack_of(FORMS["layer-norm"])
    keeping, freeing = CompiledStack(layers, None), CompiledStack(layers, None, max_reused=0)
    for _ in range(2):
        assert torch.equal(keeping(x, ragged()), freeing(x, ragged()))
    assert keeping._work(1) is keeping._work(2)
    assert freeing._work(1) is not freeing._work(1)


@pytest.mark.parametrize("unknown", [-1, VOCABULARY])
def test_an_unknown_id_is_refused_before_a_state_changes(unknown: int) -> None:
    stack = CompiledStack(stack_of(FORMS["sru"]), random(VOCABULARY, WIDTH))
    batch = ragged()
    before = batch.states.clone()
    ids = torch.zeros(sum(LENGTHS), dtype=torch.int64)
    ids[-1] = unknown
    with pytest.raises(IndexError, match="an id"):
        stack(ids, batch)
    assert torch.equal(batch.states, before)


def test_tensors_that_do_not_fit_are_refused() -> None:
    stack, batch, rows = CompiledStack(stack_of(FORMS["sru"]), None), ragged(), sum(LENGTHS)
    for x in (random(rows, WIDTH + 1), random(rows, WIDTH).double(), torch.zeros(rows).long()):
        with pytest.raises(ValueError, match="stack: inputs"):
            stack(x, batch)
    x = random(rows, WIDTH)
    with pytest.raises(ValueError, match="batch"):
        stack(x, RaggedBatch(batch.offsets[1:], batch.states, batch.source, batch.target))
    with pytest.raises(ValueError, match="offsets"):
        stack(x[1:], batch)
    nothing = torch.zeros(0, dtype=torch.int64)  # so that 512 rows, enough for slices, are nobody's
    with pytest.raises(ValueError, match="offsets"):
        stack(random(512, WIDTH), RaggedBatch(torch.tensor([512]), batch.states, nothing, nothing))
    with pytest.raises(IndexError, match="source and target"):
        stack(x, RaggedBatch(batch.offsets, batch.states[:-1], batch.source, batch.target))
    narrow = batch.states[:, :-2].contiguous()
    with pytest.raises(IndexError, match="columns"):
        stack(x, RaggedBatch(batch.offsets, narrow, batch.source, batch.target))


def test_layers_with_other_parts_run_one_after_another() -> None:
    window = layer(Cell(kind=Kind.QRNN), 1, inputs=2 * WIDTH, previous=1 + WIDTH)
    packed = PackedLinear(random(3 * WIDTH, WIDTH), None, torch.float32)
    rounded = CellLayer(linear=packed, cell=Cell(kind=Kind.QRNN), column=1)
    for other in (window, rounded):
        assert not compilable([*stack_of(FORMS["sru"]), other])
