"""LSTM, GRU and RNN on a GPU: torch's cells for a step, cuDNN's sequences for whole inputs.

Both choose how they sum by the number of rows, so results agree to rounding, and not bit for bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from sruserve.kernels.devices import copy_to_device
from sruserve.kernels.flat_weights import flatten_weights
from sruserve.kernels.gated_cell import GatedKind
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.state_rows import gather_columns, store_columns

_MODULES: dict[GatedKind, tuple[Callable[..., torch.nn.RNNBase], dict[str, str]]] = {
    GatedKind.LSTM: (torch.nn.LSTM, {}),
    GatedKind.GRU: (torch.nn.GRU, {}),
    GatedKind.RNN_TANH: (torch.nn.RNN, {"nonlinearity": "tanh"}),
    GatedKind.RNN_RELU: (torch.nn.RNN, {"nonlinearity": "relu"}),
}
_CELLS: dict[GatedKind, Callable[..., Tensor]] = {
    GatedKind.GRU: torch.gru_cell,
    GatedKind.RNN_TANH: torch.rnn_tanh_cell,
    GatedKind.RNN_RELU: torch.rnn_relu_cell,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedGatedLayer:
    """One layer of `torch.nn`'s recurrences, in the kernels that torch has for them.

    module: the layer alone, (in) -> (width), in the compute dtype: it runs whole inputs.
    weights: the forward direction's weight_ih, weight_hh, bias_ih and bias_hh (or None), float32:
        a step computes in float32, as states are. projection: its weight_hr, if h is projected.
    column: first column of h in a state row, the directions side by side. cell_column: of c.
    """

    kind: GatedKind
    module: torch.nn.RNNBase
    weights: tuple[Tensor | None, ...]
    column: int
    cell_column: int = 0
    projection: Tensor | None = None

    @staticmethod
    def fits(kind: GatedKind, device: torch.device) -> bool:
        """Whether torch has kernels of its own for a kind of layer on a device."""
        return device.type == "cuda" and kind in _MODULES

    @classmethod
    def of(
        cls,
        kind: GatedKind,
        tensors: Sequence[Sequence[Tensor]],
        column: int,
        cell_column: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "FusedGatedLayer":
        """Build a layer from each direction's tensors, in the order of `torch.nn`.

        That is weight_ih, weight_hh, then bias_ih and bias_hh if there are biases, then weight_hr
        of an LSTM with projections.
        """
        first, directions = tensors[0], len(tensors)
        projected = kind is GatedKind.LSTM and len(first) % 2 == 1
        width = len(first[0]) // kind.blocks
        make, options = _MODULES[kind]
        module = make(
            first[0].shape[1],
            width,
            bias=len(first) >= 4,
            bidirectional=directions == 2,
            device="meta",  # its random weights are never made
            dtype=dtype,
            **({"proj_size": first[1].shape[1]} if projected else {}),
            **options,
        ).to_empty(device=device)
        weights = [tensor for direction in tensors for tensor in direction]
        with torch.no_grad():
            for parameter, tensor in zip(module.parameters(), weights, strict=True):
                parameter.copy_(tensor)
        flatten_weights(module.requires_grad_(False).eval())
        if device.type == "cuda":
            torch.backends.cudnn.rnn.fp32_precision = "ieee"  # type: ignore[attr-defined] # TF32: 1e-3
        exact = [tensor.to(device, dtype).float() for tensor in first]
        return cls(
            kind=kind,
            module=module,
            weights=(*exact[:2], *(exact[2:4] if len(first) >= 4 else (None, None))),
            column=column,
            cell_column=cell_column,
            projection=exact[-1] if projected else None,
        )

    @property
    def width(self) -> int:
        """See `Layer.width`."""
        return (2 if self.module.bidirectional else 1) * self._outputs

    @property
    def columns(self) -> int:
        """See `Layer.columns`: what cuDNN computes before the first step."""
        return self.width // self._outputs * self.kind.blocks * self.module.hidden_size

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Compute h (rows, width) from x (rows, in), and advance `batch.states`."""
        return self.finish(self.scan(self.project(x, batch), x, batch))

    def project(self, x: Tensor, batch: RaggedBatch) -> Tensor:  # noqa: ARG002
        """Return x: cuDNN multiplies the inputs itself."""
        return x

    def scan(self, u: Tensor, x: Tensor, batch: RaggedBatch, out: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Run both directions over all sequences, as packed by their steps."""
        if out is None:
            out = torch.empty(len(x), self.width, dtype=x.dtype, device=x.device)
        order, rows, sizes = _packed(batch.offsets_on_host())
        entries = self._entries()
        start = [gather_columns(batch.states, batch.source, *entry) for entry in entries]
        ends = start
        if len(rows):
            order, rows = copy_to_device(order, x.device), copy_to_device(rows, x.device)
            hx = [self._by_direction(h.index_select(0, order), x.dtype) for h in start]
            packed = PackedSequence(x.index_select(0, rows), sizes)
            h, end = self.module(packed, tuple(hx) if len(hx) > 1 else hx[0])
            out.index_copy_(0, rows, h.data)
            ends = [
                before.index_copy(0, order, after.transpose(0, 1).flatten(1).float())
                for before, after in zip(start, end if len(hx) > 1 else (end,), strict=True)
            ]
        for (column, _), values in zip(entries, ends, strict=True):
            store_columns(values, batch.states, batch.target, column)
        return out

    def finish(self, h: Tensor) -> Tensor:
        """Return h unchanged: the next layer reads it."""
        return h

    def step(
        self, x: Tensor, states: Tensor, source: Tensor, target: Tensor, index: Tensor | None = None
    ) -> Tensor:
        """See `StepLayer.step`; but its bits are not those of `scan`. For one direction."""
        inputs = (x if index is None else x.index_select(0, index)).float()
        before = [gather_columns(states, source, *entry) for entry in self._entries()]
        if self.kind is GatedKind.LSTM:
            after = self._lstm_step(inputs, *before)
        else:
            after = (_CELLS[self.kind](inputs, *before, *self.weights),)
        for (column, _), values in zip(self._entries(), after, strict=True):
            store_columns(values, states, target, column)
        return after[0].to(x.dtype)

    def _lstm_step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        w_ih, w_hh, b_ih, b_hh = self.weights
        assert w_ih is not None
        assert w_hh is not None
        if self.projection is None:
            return torch.lstm_cell(x, (h, c), w_ih, w_hh, b_ih, b_hh)
        # torch's cell knows no projection.
        i, f, g, o = (F.linear(x, w_ih, b_ih) + F.linear(h, w_hh, b_hh)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return F.linear(torch.sigmoid(o) * torch.tanh(c), self.projection), c

    @property
    def _outputs(self) -> int:
        """Channels of h in one direction."""
        return self.module.proj_size or self.module.hidden_size

    def _entries(self) -> list[tuple[int, int]]:
        """Return first column and width of h, and of an LSTM's c, in a state row."""
        h, c = (self.column, self.width), self.cell_column
        if self.kind is not GatedKind.LSTM:
            return [h]
        return [h, (c, self.width // self._outputs * self.module.hidden_size)]

    def _by_direction(self, state: Tensor, dtype: torch.dtype) -> Tensor:
        directions = self.width // self._outputs
        return state.to(dtype).view(len(state), directions, -1).transpose(0, 1).contiguous()


def _packed(offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Order rows as `PackedSequence` has them: all first steps, all second ones, and so on.

    offsets: (sequences + 1), int64, on the CPU.

    Returns the sequences that are not empty, the longest first; the row at each place; and how many
    sequences reach each step.
    """
    lengths = offsets.diff()
    order = lengths.argsort(descending=True, stable=True)[: int((lengths > 0).sum())]
    if not len(order):
        return order, order, order
    steps = torch.arange(int(lengths.max()))
    sizes = len(order) - torch.searchsorted(lengths[order].flip(0), steps, right=True)
    step = steps.repeat_interleave(sizes)
    place = torch.arange(len(step)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    return order, offsets[order][place] + step, sizes
