"""Pooling by attention: the mean of all outputs so far, weighted by the softmax of their scores."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sruserve.kernels import Cell, Kind, RaggedBatch, scan
from sruserve.model.heads.row_layers import RowMap
from sruserve.model.heads.softmaxes import in_pieces

_SUM = Cell(kind=Kind.SUM, blocks=1)
_MAX = Cell(kind=Kind.MAX, blocks=2)
_SHIFT = Cell(kind=Kind.SHIFT, blocks=1)
_DECAY = Cell(kind=Kind.DECAY, blocks=2)


@dataclass(frozen=True, slots=True)
class AttentionPool:
    """A last layer whose output at step t is the weighted mean of its inputs up to t.

    The running form of the softmax (Milakov and Gimelshein 2018): with the score e_t of step t and
    the largest score so far m_t, the sums [sum of w x, sum of w] before t are multiplied by
    exp(m_{t-1} - m_t), and those of step t are added with the weight w = exp(e_t - m_t).

    scores: maps rows (rows, width) to (rows, 1). widest: the largest width on its way.
    width: width of its inputs and outputs.
    column: first column of the sum of w x in a state row; that of w follows.
    largest, previous: columns with the largest score so far. Both end as the same number, but the
        maximum of a chunk may replace the first before the second is read.
    steps: column with the number of steps so far; float32, so exact up to 2**24 steps.
    """

    scores: RowMap
    widest: int
    width: int
    column: int
    largest: int
    previous: int
    steps: int

    @property
    def columns(self) -> int:
        return max(self.widest, 2 * (self.width + 1))

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Pool x (rows, width) into (rows, width) of its dtype, and advance `batch.states`."""
        return self.finish(self.scan(self.project(x, batch), x, batch))

    def project(self, x: Tensor, batch: RaggedBatch) -> Tensor:  # noqa: ARG002
        """Return the scores of the rows, (rows, 1), float32."""
        return in_pieces(lambda part: self.scores(part).float(), x, 1, self.widest)

    def scan(self, u: Tensor, x: Tensor, batch: RaggedBatch, out: Tensor | None = None) -> Tensor:
        """Pool in the order of time, as this is the recurrence."""
        count = scan(torch.ones_like(u), None, None, None, batch, self.steps, _SUM)
        later = torch.cat((u, (count > 1).float()), 1)
        largest = scan(later, None, None, None, batch, self.largest, _MAX)
        previous = scan(largest, None, None, None, batch, self.previous, _SHIFT)
        # The first step has no score before it, and its sums are 0: any finite factor will do.
        factor = (previous - largest).clamp_(max=0).exp_()
        weight = (u - largest).exp_()
        values = torch.cat((weight * x.float(), weight), 1)
        both = torch.cat((values, factor.expand_as(values)), 1)
        total = scan(both, None, None, None, batch, self.column, _DECAY)
        mean = total[:, :-1] / total[:, -1:]
        return mean.to(x.dtype) if out is None else out.copy_(mean)

    def finish(self, h: Tensor) -> Tensor:
        """Return h unchanged."""
        return h
