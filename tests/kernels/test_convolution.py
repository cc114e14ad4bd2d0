"""Convolutions over time: the layer's scans give the bits of the reference."""

import math
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sruserve.kernels import Activation, RaggedBatch, make_linear
from sruserve.kernels.convolution import ConvolutionLayer, endings
from sruserve.kernels.reference.convolution import reference_convolution
from sruserve.kernels.windows import Filters, Windows

CPU = torch.device("cpu")


@st.composite
def geometries(draw: st.DrawFn) -> Windows:
    """Windows of up to three widths, whose state begins at a column of their own."""
    widths = sorted(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    groups = tuple(
        Filters(draw(st.integers(1, 4)), width, draw(st.integers(0, 6))) for width in widths
    )
    shortest = max(draw(st.integers(1, 9)), *(g.width - 2 * g.padding for g in groups))
    at, places = draw(st.integers(0, 3)), []
    columns = sum(group.count for group in groups)
    wider = [sum(g.count for g in groups if g.width > taps) for taps in range(1, widths[-1])]
    for size in (*wider, columns):
        places.append(at)
        at += size
    return Windows(groups, shortest, tuple(places[:-1]), places[-1], at)


def layer_of(windows: Windows, filling: Tensor | None) -> ConvolutionLayer:
    """A layer whose input is u itself, without bias and activation."""
    return ConvolutionLayer(
        linear=make_linear(torch.eye(sum(windows.planes())), None, torch.float32),
        windows=windows,
        endings=endings(windows, filling, CPU),
        bias=torch.zeros(windows.columns),
        whole=windows.whole().clamp(min=1),
        activation=Activation.IDENTITY,
    )


@settings(max_examples=30)
@given(
    windows=geometries(),
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    odd=st.sampled_from([None, math.nan, math.inf, -math.inf]),
    filled=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_the_layer_gives_the_bits_of_the_reference(
    windows: Windows, lengths: list[int], odd: float | None, filled: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    u = random(sum(lengths), sum(windows.planes()))
    if odd is not None and len(u):
        u[int(torch.randint(len(u), (), generator=generator)), 0] = odd
    filling = random(windows.longest, windows.columns) if filled else None
    states = random(len(lengths) + 1, windows.steps + 2)
    states[:, windows.steps] = torch.randint(9, (len(states),), generator=generator)
    rows = torch.arange(len(lengths))
    fields: dict[str, Any] = {
        "offsets": torch.tensor([0, *lengths]).cumsum(0),
        "source": torch.where(rows % 3 == 0, -1, rows),
        "target": torch.where(rows % 4 == 3, -1, rows),
    }
    ours, theirs = states.clone(), states.clone()
    expected = reference_convolution(u, filling, RaggedBatch(states=theirs, **fields), windows)
    layer = layer_of(windows, filling)
    output = layer.scan(u, u, RaggedBatch(states=ours, **fields))
    assert torch.equal(output.nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(ours.nan_to_num(7), theirs.nan_to_num(7))
    # One step each, and into memory that the caller has.
    u, count = u[: len(lengths)], min(len(u), len(lengths))
    source, target = fields["source"][:count], fields["target"][:count]
    offsets = torch.arange(count + 1)
    stepped = layer.scan(
        u, u, RaggedBatch(offsets, ours, source, target), torch.empty_like(output[:count])
    )
    expected = reference_convolution(
        u, filling, RaggedBatch(offsets, theirs, source, target), windows
    )
    assert torch.equal(stepped.nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(ours.nan_to_num(7), theirs.nan_to_num(7))
