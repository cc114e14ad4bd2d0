"""The gated recurrences in plain torch: the definition with which the CPU kernel must agree."""

from collections.abc import Callable

import torch
from torch import Tensor

from sruserve.kernels.gated_cell import GatedCell, GatedKind
from sruserve.kernels.panel_weight import PanelWeight
from sruserve.kernels.ragged import RaggedBatch

Linear = Callable[[Tensor], Tensor]
Step = Callable[[Linear, Linear, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def reference_gated_scan(u: Tensor, cell: GatedCell, batch: RaggedBatch, out: Tensor) -> None:
    """Run one direction of a layer over a ragged batch; a step serves all sequences that reach it.

    u: (rows, blocks * width), the input's part of the gates, in the order of torch.nn.
    out: (rows, outputs), the dtype of `u`: receives h. u and out may be columns of wider tensors.

    Arithmetic and states are float32; h is rounded when it is stored in `out`.
    """
    first, second = _linear(cell.first), _linear(cell.second)
    offsets = batch.offsets.to(u.device)
    lengths = offsets.diff()
    order = lengths.argsort(descending=True, stable=True)
    begin = offsets[1:][order] - 1 if cell.backward else offsets[:-1][order]
    sign = -1 if cell.backward else 1
    source, target = batch.source.to(u.device)[order], batch.target.to(u.device)[order]
    states = batch.states
    started = (source >= 0).unsqueeze(1)
    start = states[source.clamp(min=0)]
    h = start[:, cell.column : cell.column + cell.outputs].where(started, 0.0)
    c = start[:, cell.cell_column : cell.cell_column + cell.width].where(started, 0.0)
    reach = lengths[order].tolist()
    active, step = len(reach), _STEPS[cell.kind]
    for t in range(reach[0] if reach else 0):
        while reach[active - 1] <= t:
            active -= 1
        rows = begin[:active] + sign * t
        gates = u[rows].float().view(active, cell.kind.blocks, -1).transpose(0, 1)
        h[:active], c[:active] = step(first, second, gates, h[:active], c[:active])
        out[rows] = h[:active].to(out.dtype)
    stored = target >= 0
    states[target[stored], cell.column : cell.column + cell.outputs] = h[stored]
    if cell.kind is GatedKind.LSTM:
        states[target[stored], cell.cell_column : cell.cell_column + cell.width] = c[stored]


def _linear(recurrent: PanelWeight | None) -> Linear:
    """Return a map of h (rows, inputs) to (gates, rows, outputs); without a weight, h itself."""
    if recurrent is None:
        return lambda h: h.unsqueeze(0)
    weight, bias = recurrent.plain()
    return lambda h: h @ weight + bias


def _lstm(first: Linear, second: Linear, u: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Hochreiter & Schmidhuber 1997, with a forget gate; blocks i, f, g, o as in torch.nn.LSTM."""
    i, f, g, o = u + first(h)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return second(h)[0], c


def _gru(first: Linear, _: Linear, u: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The reset gate applies after the product; blocks r, z, n as in torch.nn.GRU."""
    a_r, a_z, a_n = first(h)
    u_r, u_z, u_n = u
    n = torch.tanh(u_n + torch.sigmoid(u_r + a_r) * a_n)
    return n + torch.sigmoid(u_z + a_z) * (h - n), c


def _gru_reset_before(
    first: Linear, second: Linear, u: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """Cho et al. 2014: the candidate multiplies r * h; blocks r, z, n."""
    r, z = torch.sigmoid(u[:2] + first(h))
    n = torch.tanh(u[2] + second(r * h)[0])
    return n + z * (h - n), c


def _rnn_tanh(first: Linear, _: Linear, u: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tanh(u[0] + first(h)[0]), c


def _rnn_relu(first: Linear, _: Linear, u: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    return torch.relu(u[0] + first(h)[0]), c


def _atr(first: Linear, _: Linear, u: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Zhang et al. 2018: twin gates from a sum and a difference."""
    p, q = u[0], first(h)[0]
    return torch.sigmoid(p + q) * p + torch.sigmoid(p - q) * h, c


def _atr_tanh(
    first: Linear, second: Linear, u: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    h, c = _atr(first, second, u, h, c)
    return torch.tanh(h), c


def reference_gated_step(u: Tensor, cell: GatedCell, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Run one step of many streams, without a wait: the new h (streams, outputs), and c.

    u: (streams, blocks * width). h: (streams, outputs). c: (streams, width), for an LSTM. All are
    float32.
    """
    gates = u.view(len(u), cell.kind.blocks, -1).transpose(0, 1)
    return _STEPS[cell.kind](_linear(cell.first), _linear(cell.second), gates, h, c)


_STEPS: dict[GatedKind, Step] = {
    GatedKind.LSTM: _lstm,
    GatedKind.GRU: _gru,
    GatedKind.GRU_RESET_BEFORE: _gru_reset_before,
    GatedKind.RNN_TANH: _rnn_tanh,
    GatedKind.RNN_RELU: _rnn_relu,
    GatedKind.ATR_TANH: _atr_tanh,
    GatedKind.ATR_IDENTITY: _atr,
}
