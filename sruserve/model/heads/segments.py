"""Reductions over the rows of each of several sequences, in the order of time."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sruserve.kernels import Cell, Kind, RaggedBatch, scan
from sruserve.kernels.devices import copy_to_device
from sruserve.model.heads.pooling import PoolLayer
from sruserve.model.heads.row_layers import RowMap
from sruserve.model.heads.softmaxes import in_pieces


class Segments:
    """Sequences whose rows lie end to end.

    lengths: (sequences), int64, on the CPU: the number of rows of each.
    device: of the rows.

    of_row: (rows), int64, on the CPU: each row's sequence.
    """

    def __init__(self, lengths: Tensor, device: torch.device) -> None:
        offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
        self.of_row = torch.arange(len(lengths)).repeat_interleave(lengths)
        self._of_row = copy_to_device(self.of_row, device)
        # A sequence without rows has no last one: any row will do, as nobody reads the result.
        self._ends = copy_to_device((offsets[1:] - 1).clamp_(min=0), device)
        self._offsets = copy_to_device(offsets, device)
        self._each = torch.arange(len(lengths), device=device)

    def last(self, x: Tensor) -> Tensor:
        """Return the last row of each sequence."""
        return x.index_select(0, self._ends)

    def final(self, x: Tensor, forward: int) -> Tensor:
        """Return each sequence's outputs at the step where their direction ends.

        forward: number of columns that run forward; the others run backward, and end at the start.
        """
        starts = self._offsets[:-1].clamp(max=max(0, len(x) - 1))
        return torch.cat((self.last(x)[:, :forward], x.index_select(0, starts)[:, forward:]), 1)

    def pooled(self, x: Tensor, mean: bool) -> Tensor:
        """Return the mean or the maximum of each sequence's rows, in their dtype."""
        width = x.shape[1]
        layer = PoolLayer(mean, width, 0, width)
        return self.last(layer(x, self._batch(width + 1)))

    def summed(self, x: Tensor) -> Tensor:
        """Return the sum of each sequence's rows, added in order; x is (rows, n), float32."""
        batch = self._batch(x.shape[1])
        scan(x, None, None, None, batch, 0, Cell(kind=Kind.SUM, blocks=1))
        return batch.states

    def attended(self, x: Tensor, scores: Tensor) -> Tensor:
        """Return the mean of each sequence's rows, weighted by the softmax of their scores.

        scores: (rows, 1), float32.
        """
        largest = self.pooled(scores, mean=False)
        weights = (scores - self.spread(largest)).exp_()
        total = self.summed(torch.cat((weights * x.float(), weights), 1))
        return (total[:, :-1] / total[:, -1:]).to(x.dtype)

    def spread(self, x: Tensor) -> Tensor:
        """Return for each row its sequence's row of x (sequences, n)."""
        return x.index_select(0, self._of_row)

    def _batch(self, columns: int) -> RaggedBatch:
        """Return the sequences with one state row each; they start from zeros."""
        states = torch.zeros(len(self._each), columns, device=self._each.device)
        return RaggedBatch(self._offsets, states, torch.full_like(self._each, -1), self._each)


@dataclass(frozen=True, slots=True)
class FinalAttentionPool:
    """Each row becomes the mean of its sequence's rows, weighted by the softmax of their scores.

    A step's score also reads the final outputs of its sequence, so it needs the whole sequence.

    scores: maps rows (rows, 2 * width), each beside its sequence's final outputs, to (rows, 1).
    widest: the largest width on its way.
    forward: number of columns that run forward.
    """

    scores: RowMap
    widest: int
    forward: int

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Pool x (rows, width) of whole sequences into (rows, width) of its dtype."""
        segments = Segments(batch.offsets.diff(), x.device)
        rows = x[: len(segments.of_row)]  # without padding
        inputs = torch.cat((rows, segments.spread(segments.final(rows, self.forward))), 1)
        scores = in_pieces(lambda part: self.scores(part).float(), inputs, 1, self.widest)
        return segments.spread(segments.attended(rows, scores))
