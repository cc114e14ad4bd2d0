"""Layers of every element-wise kind: any split, any batch and a single step give the same bits."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sruserve.kernels import (
    Activation,
    Cell,
    CellLayer,
    Kind,
    Norm,
    NormKind,
    RaggedBatch,
    StepLayer,
    make_linear,
    single,
)

WIDTH, STATE_WIDTH = 20, 64
TANH = Activation.TANH


def layers(dtype: torch.dtype = torch.float32) -> dict[str, CellLayer]:
    """One layer of each form; inputs and outputs have one width."""
    g = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=g)

    def layer(cell: Cell, inputs: int = WIDTH, biased: bool = True, **parts: Any) -> CellLayer:
        weight = random(cell.blocks * WIDTH, inputs) / inputs**0.5
        product = make_linear(weight, random(len(weight)) if biased else None, dtype)
        return CellLayer(linear=product, cell=cell, column=3, **parts)

    gates: dict[str, Any] = {"weight_c": random(2, WIDTH), "bias": random(2, WIDTH)}
    rms = Norm(random(3 * WIDTH).to(dtype), None, NormKind.RMS)
    ln_lst = Norm(random(WIDTH).to(dtype), random(WIDTH).to(dtype), NormKind.UNBIASED)
    return {
        "sru": layer(Cell(scale=1.2), biased=False, highway_is_input=True, **gates),
        "sru-normed-after": layer(Cell(blocks=4), norm=ln_lst, norm_after=True, **gates),
        "lrn": layer(Cell(kind=Kind.LRN, activation=TANH)),
        "lrn-normed": layer(
            Cell(kind=Kind.LRN, activation=TANH),
            biased=False,
            inner_norm=rms,
            inner_bias=random(3 * WIDTH).to(dtype),
        ),
        "qrnn": layer(Cell(kind=Kind.QRNN), highway_is_input=True),
        "qrnn-of-window-2": layer(Cell(kind=Kind.QRNN), inputs=2 * WIDTH, previous=3 + WIDTH),
    }


LAYERS = {dtype: layers(dtype) for dtype in (torch.float32, torch.bfloat16)}
EACH_LAYER = pytest.mark.parametrize("name", LAYERS[torch.float32])


@given(
    name=st.sampled_from(list(LAYERS[torch.float32])),
    dtype=st.sampled_from(list(LAYERS)),
    cuts=st.sets(st.integers(1, 19), max_size=4),
    seed=st.integers(0, 100),
)
def test_any_split_of_time_gives_the_same_bits(
    name: str, dtype: torch.dtype, cuts: set[int], seed: int
) -> None:
    layer, g = LAYERS[dtype][name], torch.Generator().manual_seed(seed)
    x = torch.randn(20, WIDTH, generator=g).to(dtype)
    whole_states = torch.randn(1, STATE_WIDTH, generator=g)
    states = whole_states.clone()
    whole = layer(x, single(whole_states, 20))
    parts = [
        layer(x[first:end], single(states, end - first))
        for first, end in pairwise([0, *sorted(cuts), 20])
    ]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(states, whole_states)


@EACH_LAYER
def test_a_step_and_company_give_the_bits_of_a_sequence_alone(name: str) -> None:
    layer, g = LAYERS[torch.float32][name], torch.Generator().manual_seed(1)
    assert isinstance(layer, StepLayer)
    table, index = torch.randn(9, WIDTH, generator=g), torch.tensor([5, 5, 0, 8])
    states = torch.randn(6, STATE_WIDTH, generator=g)
    source, target = torch.tensor([0, -1, 2, 3]), torch.tensor([0, 1, 4, -1])
    before = states.clone()
    stepped = layer.step(table, states, source, target, index)
    for i in range(4):
        alone = before.clone()
        row = slice(i, i + 1)
        batch = RaggedBatch(torch.tensor([0, 1]), alone, source[row], target[row])
        assert torch.equal(layer(table[index[row]], batch), stepped[row])
        if target[i] >= 0:
            assert torch.equal(alone[target[i]], states[target[i]])


def test_a_window_of_2_reads_the_input_before_from_the_state() -> None:
    layer = LAYERS[torch.float32]["qrnn-of-window-2"]
    x, states = torch.randn(4, WIDTH), torch.zeros(1, STATE_WIDTH)
    u = layer.project(x, single(states, 4))
    before = torch.cat((torch.zeros(1, WIDTH), x[:-1]))
    torch.testing.assert_close(u, layer.linear(torch.cat((x, before), 1)))
    assert torch.equal(states[0, 3 + WIDTH : 3 + 2 * WIDTH], x[-1])


def test_an_inner_norm_precedes_the_bias() -> None:
    layer = LAYERS[torch.float32]["lrn-normed"]
    x = torch.randn(4, WIDTH)
    assert layer.inner_norm is not None
    assert layer.inner_bias is not None
    expected = layer.inner_norm(layer.linear(x)) + layer.inner_bias
    assert torch.equal(layer.project(x, single(torch.zeros(1, STATE_WIDTH), 4)), expected)


def test_a_layer_tells_its_width_and_what_bounds_a_piece_of_rows() -> None:
    assert {(each.width, each.columns) for each in LAYERS[torch.float32].values()} == {
        (WIDTH, 3 * WIDTH),
        (WIDTH, 4 * WIDTH),
    }
