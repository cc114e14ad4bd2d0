"""One layer of LSTM, GRU, RNN or ATR: a matrix product over all rows, then one in every step."""

from dataclasses import dataclass

import torch
from torch import Tensor

import sruserve.kernels.cpu.library as cpu
from sruserve.kernels.cpu.gated import cpu_gated_scan
from sruserve.kernels.gated_cell import GatedCell, GatedKind
from sruserve.kernels.linear import LinearOp
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.reference.gated import reference_gated_scan, reference_gated_step
from sruserve.kernels.state_rows import gather_columns, store_columns


def gated_scan(u: Tensor, cell: GatedCell, batch: RaggedBatch, out: Tensor) -> None:
    """Run `reference_gated_scan`, with the compiled CPU kernel if it is available."""
    if u.is_cpu and cpu.available():
        cpu_gated_scan(u, cell, batch, out)
    else:
        reference_gated_scan(u, cell, batch, out)


@dataclass(frozen=True, slots=True)
class GatedLayer:
    """The tensors of one layer, one cell for each direction.

    linear: (in) -> (directions * blocks * cell width), with the input's biases.
    cells: the forward cell, then the backward one of a bidirectional layer.
    """

    linear: LinearOp
    cells: tuple[GatedCell, ...]

    @property
    def width(self) -> int:
        return sum(cell.outputs for cell in self.cells)

    @property
    def columns(self) -> int:
        return self.linear.outputs

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Compute h (rows, width), forward columns then backward ones, from x (rows, in)."""
        return self.finish(self.scan(self.project(x, batch), x, batch))

    def project(self, x: Tensor, batch: RaggedBatch) -> Tensor:  # noqa: ARG002
        """Compute the input's part of the gates: u (rows, columns)."""
        return self.linear(x)

    def scan(self, u: Tensor, x: Tensor, batch: RaggedBatch, out: Tensor | None = None) -> Tensor:
        """Run the recurrence over `u`, each direction in its own columns."""
        if out is None:
            out = torch.empty(len(u), self.width, dtype=x.dtype, device=x.device)
        inputs = u.chunk(len(self.cells), 1)
        outputs = out.chunk(len(self.cells), 1)
        for cell, part, h in zip(self.cells, inputs, outputs, strict=True):
            gated_scan(part, cell, batch, h)
        return out

    def finish(self, h: Tensor) -> Tensor:
        """Return h unchanged: the next layer reads it."""
        return h

    def step(
        self, x: Tensor, states: Tensor, source: Tensor, target: Tensor, index: Tensor | None = None
    ) -> Tensor:
        """See `StepLayer.step`; but its bits are not those of `scan` on a GPU. For one direction.

        The step's product is torch's own, whose sums depend on the number of streams.
        """
        (cell,) = self.cells
        u = self.linear.step(x, index, torch.float32)
        h = c = gather_columns(states, source, cell.column, cell.outputs)
        if cell.kind is GatedKind.LSTM:
            c = gather_columns(states, source, cell.cell_column, cell.width)
        h, c = reference_gated_step(u, cell, h, c)
        store_columns(h, states, target, cell.column)
        if cell.kind is GatedKind.LSTM:
            store_columns(c, states, target, cell.cell_column)
        return h.to(x.dtype)
