"""Pooling of a stream: the mean, or the largest, of all outputs so far."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sruserve.kernels import Cell, Kind, RaggedBatch, scan

_SUM = Cell(kind=Kind.SUM, blocks=1)
_MAX = Cell(kind=Kind.MAX, blocks=2)


@dataclass(frozen=True, slots=True)
class PoolLayer:
    """A last layer whose output at step t is the mean, or the maximum, of its inputs up to t.

    width: of its inputs and outputs.
    column: where what it remembers of a stream begins in a state row: the sum, or the maximum.
    steps: the column of the number of steps so far; float32, so exact for 2**24 of them.
    """

    mean: bool
    width: int
    column: int
    steps: int

    @property
    def columns(self) -> int:
        return self.width if self.mean else 2 * self.width

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Pool x (rows, width) into (rows, width) of its dtype; `batch.states` moves on."""
        return self.finish(self.scan(self.project(x, batch), x, batch))

    def project(self, x: Tensor, batch: RaggedBatch) -> Tensor:  # noqa: ARG002
        """What is pooled: (rows, width); float32 for a mean, so that a sum is rounded once."""
        return x.float() if self.mean else x

    def scan(self, u: Tensor, x: Tensor, batch: RaggedBatch, out: Tensor | None = None) -> Tensor:
        """Count the steps, and pool; the counts are in order here, beside their stream's others."""
        ones = torch.ones(len(u), 1, device=u.device)
        count = scan(ones, None, None, None, batch, self.steps, _SUM)
        if self.mean:
            total = scan(u, None, None, None, batch, self.column, _SUM)
            found = total.div_(count)
            return found.to(x.dtype) if out is None else out.copy_(found)
        later = (count > 1).to(u.dtype).expand_as(u)
        both = torch.cat((u, later), 1)
        return scan(both, None, None, None, batch, self.column, _MAX, out=out)

    def finish(self, h: Tensor) -> Tensor:
        """Nothing is left to do."""
        return h
