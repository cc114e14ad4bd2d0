"""Layers in torch's recurrent kernels compute what our gated layers do: whole, split, stepped."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sruserve.kernels import (
    FusedGatedLayer,
    GatedCell,
    GatedKind,
    GatedLayer,
    Layer,
    PanelWeight,
    RaggedBatch,
    StepLayer,
    make_linear,
    single,
)
from sruserve.kernels.chunks import plan, run_layers
from sruserve.kernels.side_stream import InlineStream
from tests.no_wait import NoWait

INPUTS, WIDTH, PROJECTED, EDGE = 9, 6, 4, 2
LENGTHS = [3, 0, 7, 1, 12, 2]
FUSED = [GatedKind.LSTM, GatedKind.GRU, GatedKind.RNN_TANH, GatedKind.RNN_RELU]
VARIANTS = [*((kind, False) for kind in FUSED), (GatedKind.LSTM, True)]
EACH = pytest.mark.parametrize(
    ("kind", "projected"), VARIANTS, ids=[f"{k.name}{'-projected' * p}" for k, p in VARIANTS]
)


def tensors(
    kind: GatedKind, projected: bool, directions: int, bias: bool = True
) -> list[list[Tensor]]:
    """Each direction's tensors, in the order of torch.nn."""
    g = torch.Generator().manual_seed(3)
    rows, outputs = kind.blocks * WIDTH, PROJECTED if projected else WIDTH

    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=g) / 2

    return [
        [random(rows, INPUTS), random(rows, outputs)]
        + ([random(rows), random(rows)] if bias else [])
        + ([random(outputs, WIDTH)] if projected else [])
        for _ in range(directions)
    ]


def layers(
    kind: GatedKind,
    projected: bool = False,
    directions: int = 1,
    bias: bool = True,
    dtype: torch.dtype = torch.float32,
) -> tuple[FusedGatedLayer, GatedLayer]:
    """The same layer in torch's kernels and in ours."""
    parameters = tensors(kind, projected, directions, bias)
    outputs = PROJECTED if projected else WIDTH
    c = EDGE + directions * outputs
    cells = []
    for i, (_, hh, *rest) in enumerate(parameters):
        recurrent = PanelWeight.of(hh.to(dtype), rest[1] if bias else None, kind.blocks)
        second = PanelWeight.of(rest[-1].to(dtype), None, 1) if projected else None
        cells.append(
            GatedCell(
                kind=kind,
                first=recurrent,
                second=second,
                column=EDGE + i * outputs,
                cell_column=c + i * WIDTH,
                backward=i == 1,
            )
        )
    weight = torch.cat([direction[0] for direction in parameters])
    biases = torch.cat([direction[2] for direction in parameters]) if bias else None
    ours = GatedLayer(make_linear(weight, biases, dtype), tuple(cells))
    return FusedGatedLayer.of(kind, parameters, EDGE, c, dtype, torch.device("cpu")), ours


def batch(lengths: list[int], columns: int) -> RaggedBatch:
    """Streams that continue, begin, and whose end is dropped."""
    g, count = torch.Generator().manual_seed(4), len(lengths)
    rows = torch.arange(count)
    return RaggedBatch(
        torch.tensor([0, *lengths]).cumsum(0),
        torch.randn(2 * count, columns, generator=g),
        torch.where(rows % 3 == 1, -1, rows),
        torch.where(rows % 4 == 3, -1, rows + count),
    )


def run(layer: Layer, x: Tensor, work: RaggedBatch) -> tuple[Tensor, Tensor]:
    work = replace(work, states=work.states.clone())
    return layer(x, work), work.states


def inputs(rows: int) -> Tensor:
    return torch.randn(rows, INPUTS, generator=torch.Generator().manual_seed(5))


@EACH
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("bias", [True, False], ids=["", "without-bias"])
def test_a_layer_over_sequences_computes_what_ours_does(
    kind: GatedKind, projected: bool, directions: int, bias: bool
) -> None:
    fused, ours = layers(kind, projected, directions, bias)
    work, x = batch(LENGTHS, 2 * EDGE + directions * 2 * WIDTH), inputs(sum(LENGTHS))
    assert (fused.width, fused.columns) == (ours.width, ours.columns)
    torch.testing.assert_close(run(fused, x, work), run(ours, x, work), rtol=1e-5, atol=1e-5)


@EACH
def test_a_step_computes_what_a_sequence_of_one_step_does_and_never_waits(
    kind: GatedKind, projected: bool
) -> None:
    fused, ours = layers(kind, projected)
    assert isinstance(fused, StepLayer)
    work, table = batch([1] * 6, 3 * WIDTH), inputs(9)
    index = torch.tensor([8, 0, 3, 3, 1, 2])
    states = work.states.clone()
    with NoWait():
        h = fused.step(table, states, work.source, work.target, index)
    torch.testing.assert_close((h, states), run(ours, table[index], work), rtol=1e-5, atol=1e-5)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.integers(1, 12))
def test_any_lengths_in_any_chunks_give_the_same(lengths: list[int], chunk: int) -> None:
    fused, ours = layers(GatedKind.LSTM)
    total, rows = sum(lengths), torch.arange(len(lengths))
    x, states = inputs(total), torch.zeros(len(lengths), 3 * WIDTH)
    planned = plan(RaggedBatch(torch.tensor([0, *lengths]).cumsum(0), states, rows, rows), chunk)
    ordered = x if planned.order is None else x[planned.order]
    parts = [ordered[begin:end] for begin, end, _ in planned.chunks]
    batches = [batch for *_, batch in planned.chunks]
    h = torch.cat(run_layers([fused], parts, batches, InlineStream()))
    whole = RaggedBatch(torch.tensor([0, *lengths]).cumsum(0), torch.zeros_like(states), rows, rows)
    torch.testing.assert_close(
        (h[planned.places(torch.arange(total))], states),
        (ours(x, whole), whole.states),
        rtol=1e-5,
        atol=1e-5,
    )


def test_in_bfloat16_a_step_keeps_its_state_in_float32() -> None:
    fused, ours = layers(GatedKind.LSTM, dtype=torch.bfloat16)
    x = inputs(60).bfloat16()
    state, expected = torch.zeros(1, 3 * WIDTH), torch.zeros(1, 3 * WIDTH)
    zero = torch.zeros(1, dtype=torch.int64)
    for row in x:
        fused.step(row[None], state, zero, zero)
    ours(x, single(expected, 60))
    torch.testing.assert_close(state, expected, rtol=0.02, atol=0.02)
    assert not torch.equal(state, state.bfloat16().float())


@pytest.mark.parametrize("kind", [GatedKind.ATR_TANH, GatedKind.ATR_IDENTITY, "reset-before"])
def test_layers_that_torch_does_not_have_step_in_plain_torch_without_a_wait(
    kind: GatedKind | str,
) -> None:
    g = torch.Generator().manual_seed(6)
    second = None
    gates, is_gru = 1, kind == "reset-before"
    if is_gru:
        gates, second = 2, PanelWeight.of(torch.randn(WIDTH, WIDTH, generator=g), None, 1)
    kind = GatedKind.GRU_RESET_BEFORE if isinstance(kind, str) else kind
    first = PanelWeight.of(torch.randn(gates * WIDTH, WIDTH, generator=g), None, gates)
    cell = GatedCell(kind=kind, first=first, second=second, column=EDGE)
    weight = torch.randn(kind.blocks * WIDTH, INPUTS, generator=g)
    layer = GatedLayer(make_linear(weight, None, torch.float32), (cell,))
    work, table = batch([1] * 6, 3 * WIDTH), inputs(9)
    index, states = torch.tensor([8, 0, 3, 3, 1, 2]), work.states.clone()
    with NoWait():
        h = layer.step(table, states, work.source, work.target, index)
    torch.testing.assert_close((h, states), run(layer, table[index], work), rtol=1e-5, atol=1e-5)
