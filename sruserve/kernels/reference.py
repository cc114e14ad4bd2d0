"""The element-wise recurrences in plain torch: the definition every faster kernel must agree with."""

from collections.abc import Callable

import torch
from torch import Tensor

from sruserve.kernels.cell import Activation, Cell, Kind
from sruserve.kernels.ragged import RaggedBatch


def reference_scan(
    u: Tensor,
    residual: Tensor | None,
    weight_c: Tensor | None,
    bias: Tensor | None,
    batch: RaggedBatch,
    column: int,
    cell: Cell,
    *,
    backward_from: int | None = None,
) -> Tensor:
    """An element-wise recurrence over a ragged batch.

    u: (rows, blocks * width), float32 or bfloat16, in planar blocks; see `Cell`. Rows past the
        last offset are padding: what h holds there means nothing.
    residual: (rows, width), the dtype of `u`: the layer's raw input, which the highway takes
        times `cell.scale`; only where `cell.takes_residual`, and None without a highway.
    weight_c, bias: (2, width), float32: forget, reset; for SRU alone, otherwise None.
    column: the first column of this recurrence's state in the rows of `batch.states`.
    backward_from: channels from this one on run from the last row to the first.

    Returns h, (rows, width), the dtype of `u`. Arithmetic and state are float32.
    """
    width = u.shape[1] // cell.blocks
    planes = u.float().view(len(u), cell.blocks, width)
    skip = None if residual is None else residual.float() * cell.scale
    gates = torch.zeros(4, width)
    if weight_c is not None and bias is not None:
        gates = torch.cat((weight_c, bias))
    step = _STEPS[cell.kind]
    h = torch.empty(len(u), width)
    split = width if backward_from is None else backward_from
    offsets = batch.offsets.tolist()
    rows = zip(batch.source.tolist(), batch.target.tolist(), strict=True)
    for sequence, (source, target) in enumerate(rows):
        times = range(offsets[sequence], offsets[sequence + 1])
        for order, channels in ((times, slice(0, split)), (times[::-1], slice(split, width))):
            place = slice(column + channels.start, column + channels.stop)
            state = torch.zeros(place.stop - place.start)
            if source >= 0:
                state = batch.states[source, place]
            for t in order:
                x = None if skip is None else skip[t, channels]
                out, state = step(cell, planes[t, :, channels], x, state, gates[:, channels])
                h[t, channels] = out
            if target >= 0:
                batch.states[target, place] = state
    return h.to(u.dtype)


def _sru(
    cell: Cell, u: Tensor, x: Tensor | None, c: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    """Lei et al. 2018, eq. 1-4; sru 2.1.9-2.6.0."""
    (z, u_f, u_r), (w_f, w_r, b_f, b_r) = u[:3], gates
    f = torch.sigmoid(u_f + w_f * c + b_f)
    new = z + (c - z) * f  # the released code's rounding order
    r = torch.sigmoid(u_r + w_r * (new if cell.updated_reset else c) + b_r)
    return _highway(_ACTIVATIONS[cell.activation](new), r, u[3] if cell.blocks == 4 else x), new


def _lrn(
    cell: Cell, u: Tensor, x: Tensor | None, h: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    """Zhang and Sennrich 2019, eq. 5-7; with 4 blocks oLRN, whose output gate reads the new c."""
    p, q, r = u[:3]
    i = torch.sigmoid(p + h)
    f = torch.sigmoid(q - h)
    c = _ACTIVATIONS[cell.activation](i * r + f * h)
    h = c if cell.blocks == 3 else torch.sigmoid(u[3] - c) * c
    return h, h


def _qrnn(
    cell: Cell, u: Tensor, x: Tensor | None, c: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    """Bradbury et al. 2016 as released: f gates the new value; a highway as SRU's where asked."""
    z, f = torch.tanh(u[0]), torch.sigmoid(u[1]) * cell.keep
    c = c + f * (z - c)
    if cell.blocks == 2:
        return c, c
    return _highway(c, torch.sigmoid(u[2]), u[3] if cell.blocks == 4 else x), c


def _sum(
    cell: Cell, u: Tensor, x: Tensor | None, c: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    c = c + u[0]
    return c, c


def _max(
    cell: Cell, u: Tensor, x: Tensor | None, c: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    c = torch.where(u[1] == 0, u[0], torch.maximum(c, u[0]))
    return c, c


def _shift(
    cell: Cell, u: Tensor, x: Tensor | None, c: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    return c, u[0]


def _highway(value: Tensor, gate: Tensor, x: Tensor | None) -> Tensor:
    return value * gate if x is None else x + (value - x) * gate


_Step = Callable[[Cell, Tensor, Tensor | None, Tensor, Tensor], tuple[Tensor, Tensor]]
_STEPS: dict[Kind, _Step] = {
    Kind.SRU: _sru,
    Kind.LRN: _lrn,
    Kind.QRNN: _qrnn,
    Kind.SUM: _sum,
    Kind.MAX: _max,
    Kind.SHIFT: _shift,
}
_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.IDENTITY: lambda c: c,
    Activation.TANH: torch.tanh,
    Activation.RELU: torch.relu,
    Activation.SELU: torch.selu,
}
