"""Pooling: the mean or maximum of all outputs so far, or several rows side by side."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sruserve.kernels import Cell, Kind, RaggedBatch, scan

_SUM = Cell(kind=Kind.SUM, blocks=1)
_MAX = Cell(kind=Kind.MAX, blocks=2)


@dataclass(frozen=True, slots=True)
class PoolLayer:
    """A last layer whose output at step t is the mean or the maximum of its inputs up to t.

    mean: the mean instead of the maximum.
    width: width of its inputs and outputs.
    column: first column of the running sum or maximum in a state row.
    steps: column with the number of steps so far; float32, so exact up to 2**24 steps.
    """

    mean: bool
    width: int
    column: int
    steps: int

    @property
    def columns(self) -> int:
        return self.width if self.mean else 2 * self.width

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Pool x (rows, width) into (rows, width) of its dtype, and advance `batch.states`."""
        return self.finish(self.scan(self.project(x, batch), x, batch))

    def project(self, x: Tensor, batch: RaggedBatch) -> Tensor:  # noqa: ARG002
        """Return the rows to pool, (rows, width), in float32 for a mean, which is rounded once."""
        return x.float() if self.mean else x

    def scan(self, u: Tensor, x: Tensor, batch: RaggedBatch, out: Tensor | None = None) -> Tensor:
        """Count the steps and pool; both run in the order of time, as this is the recurrence."""
        ones = torch.ones(len(u), 1, device=u.device)
        count = scan(ones, None, None, None, batch, self.steps, _SUM)
        if self.mean:
            total = scan(u, None, None, None, batch, self.column, _SUM)
            mean = total.div_(count)
            return mean.to(x.dtype) if out is None else out.copy_(mean)
        later = (count > 1).to(u.dtype).expand_as(u)
        both = torch.cat((u, later), 1)
        return scan(both, None, None, None, batch, self.column, _MAX, out=out)

    def finish(self, h: Tensor) -> Tensor:
        """Return h unchanged."""
        return h


@dataclass(frozen=True, slots=True)
class PoolLayers:
    """A last layer whose output is that of several poolings, side by side.

    parts: in order; None for the inputs themselves, whose last row a head reads.
    inputs: width of its inputs, and of the output of each part.
    """

    parts: tuple[PoolLayer | None, ...]
    inputs: int

    @property
    def width(self) -> int:
        return self.inputs * len(self.parts)

    @property
    def columns(self) -> int:
        return sum(part.columns for part in self.parts if part is not None)

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Pool x (rows, inputs) into (rows, width) of its dtype, and advance `batch.states`."""
        return self.scan(x, x, batch)

    def project(self, x: Tensor, batch: RaggedBatch) -> Tensor:  # noqa: ARG002
        """Return x: each part converts it for itself."""
        return x

    def scan(self, u: Tensor, x: Tensor, batch: RaggedBatch, out: Tensor | None = None) -> Tensor:
        """Pool by each part in order; see `PoolLayer.scan`."""
        rows = [
            u if part is None else part.scan(part.project(u, batch), x, batch)
            for part in self.parts
        ]
        return torch.cat(rows, 1, out=out) if out is not None else torch.cat(rows, 1)

    def finish(self, h: Tensor) -> Tensor:
        """Return h unchanged."""
        return h
