"""The element-wise recurrences in plain torch: the definition for every faster kernel."""

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
    """Run an element-wise recurrence over a ragged batch.

    u: (rows, blocks * width), float32 or bfloat16, in planar blocks; see `Cell`. Rows after the
        last offset are padding, whose h is undefined.
    residual: (rows, width), the dtype of `u`: the layer's raw input, which the highway multiplies
        by `cell.scale`. Only if `cell.takes_residual`; None without a highway.
    weight_c, bias: (2, width), float32: forget, reset. Only for SRU, otherwise None.
    column: first column of this recurrence's state in the rows of `batch.states`.
    backward_from: the first channel that runs from the last row to the first; None for none.

    Returns h, (rows, width), the dtype of `u`. Arithmetic and state are float32.
    """
    width = u.shape[1] // cell.blocks
    planes = u.float().view(len(u), cell.blocks, width)
    skip = None if residual is None else residual.float() * cell.scale
    gates = torch.zeros(4, width)
    if weight_c is not None and bias is not None:
        gates = torch.cat((weight_c, bias))
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
                out, state = _step(cell, planes[t, :, channels], x, state, gates[:, channels])
                h[t, channels] = out
            if target >= 0:
                batch.states[target, place] = state
    return h.to(u.dtype)


def _step(
    cell: Cell, u: Tensor, x: Tensor | None, c: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    """Return h and the new state of one step, from the planes of u and the previous state.

    SRU: Lei et al. 2018, eq. 1-4; sru 2.1.9-2.6.0. LRN: Zhang and Sennrich 2019; with 4 blocks
    oLRN, whose output gate reads the new c. QRNN: Bradbury et al. 2016 as released, where f gates
    the new value; its highway is that of SRU.
    """
    g = _ACTIVATIONS[cell.activation]
    x = u[3] if cell.blocks == 4 else x
    match cell.kind:
        case Kind.SRU:
            (z, u_f, u_r), (w_f, w_r, b_f, b_r) = u[:3], gates
            f = torch.sigmoid(u_f + w_f * c + b_f)
            new = z + (c - z) * f  # the released code's rounding order
            r = torch.sigmoid(u_r + w_r * (new if cell.updated_reset else c) + b_r)
            return _highway(g(new), r, x), new
        case Kind.LRN:
            i, f = torch.sigmoid(u[0] + c), torch.sigmoid(u[1] - c)
            new = g(i * u[2] + f * c)
            h = new if x is None else torch.sigmoid(x - new) * new
            return h, h
        case Kind.QRNN:
            z, f = torch.tanh(u[0]), torch.sigmoid(u[1]) * cell.keep
            new = c + f * (z - c)
            return (new if cell.blocks == 2 else _highway(new, torch.sigmoid(u[2]), x)), new
        case Kind.SUM:
            return c + u[0], c + u[0]
        case Kind.MAX:
            new = torch.where(u[1] == 0, u[0], torch.maximum(c, u[0]))
            return new, new
        case Kind.SHIFT:
            return c, u[0]
        case Kind.DECAY:
            new = u[1] * c + u[0]
            return new, new


def _highway(value: Tensor, gate: Tensor, x: Tensor | None) -> Tensor:
    return value * gate if x is None else x + (value - x) * gate


_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.IDENTITY: lambda c: c,
    Activation.TANH: torch.tanh,
    Activation.RELU: torch.relu,
    Activation.SELU: torch.selu,
}
