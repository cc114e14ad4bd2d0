"""Pairs of sequences: each side becomes one row, and both rows become a pair's features."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sruserve.kernels import Cell, Kind, LinearOp, RaggedBatch, scan
from sruserve.kernels.devices import copy_to_device
from sruserve.model.pooling import PoolLayer
from sruserve.model.softmaxes import padded


@dataclass(frozen=True, slots=True)
class StepScores:
    """Attention scores of steps: s = v . tanh(W x + b), as in the LRN repository's NLI model."""

    inner: LinearOp
    score: LinearOp

    def __call__(self, x: Tensor) -> Tensor:
        """Score steps x (rows, width); returns (rows, 1), float32."""
        return self.score(self.inner(padded(x)).tanh(), torch.float32)[: len(x)]


class PairFeatures:
    """Computes the features of each pair from the outputs at all steps of both sides.

    pooling: how a side's outputs become one row: "last", "mean", "max" or "attention".
    difference: features [a; b; |a - b|; a * b] (Conneau et al. 2017) instead of [a; b].
    attention: for pooling "attention", the scores of the first side and of the second.
    """

    def __init__(
        self, pooling: str, width: int, difference: bool, attention: Sequence[StepScores] = ()
    ) -> None:
        self._pooling, self._width = pooling, width
        self._difference, self._attention = difference, attention

    def __call__(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Compute the features of pairs, (pairs, features), the dtype of `hidden`.

        hidden: (rows, width): all steps of each pair's first side, then of its second side.
        lengths: (2 * pairs): the number of steps of each side, at least one.
        """
        sides = _Sides(torch.tensor(lengths), hidden.device)
        if self._pooling == "attention":
            rows = self._attended(hidden, sides)
        elif self._pooling == "last":
            rows = sides.last(hidden)
        else:
            rows = sides.pooled(hidden, mean=self._pooling == "mean")
        a, b = rows.view(-1, 2, self._width).unbind(1)
        parts = [a, b, (a - b).abs(), a * b] if self._difference else [a, b]
        return torch.cat(parts, 1)

    def _attended(self, hidden: Tensor, sides: "_Sides") -> Tensor:
        """Return the mean of each side's steps, weighted by the softmax of their scores."""
        scores = hidden.new_empty(len(hidden), 1, dtype=torch.float32)
        for rows, attention in zip(sides.rows, self._attention, strict=True):
            scores[rows] = attention(hidden.index_select(0, rows))
        largest = sides.pooled(scores, mean=False)
        weights = (scores - largest.index_select(0, sides.of_row)).exp_()
        total = sides.summed(torch.cat((weights * hidden.float(), weights), 1))
        return (total[:, :-1] / total[:, -1:]).to(hidden.dtype)


class _Sides:
    """The rows of each side, on `device`, and reductions over them."""

    def __init__(self, lengths: Tensor, device: torch.device) -> None:
        offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
        of_row = torch.arange(len(lengths)).repeat_interleave(lengths)
        self.rows = [
            copy_to_device((of_row % 2 == side).nonzero()[:, 0], device) for side in range(2)
        ]
        self.of_row = copy_to_device(of_row, device)
        self._ends = copy_to_device(offsets[1:] - 1, device)
        self._offsets = copy_to_device(offsets, device)
        self._each = torch.arange(len(lengths), device=device)

    def last(self, x: Tensor) -> Tensor:
        """Return the last row of each side."""
        return x.index_select(0, self._ends)

    def pooled(self, x: Tensor, mean: bool) -> Tensor:
        """Return the mean or the maximum of each side's rows, in their dtype."""
        width = x.shape[1]
        layer = PoolLayer(mean, width, 0, width)
        return self.last(layer(x, self._batch(width + 1)))

    def summed(self, x: Tensor) -> Tensor:
        """Return the sum of each side's rows, added in order; x is (rows, n), float32."""
        batch = self._batch(x.shape[1])
        scan(x, None, None, None, batch, 0, Cell(kind=Kind.SUM, blocks=1))
        return batch.states

    def _batch(self, columns: int) -> RaggedBatch:
        """Return the sides as sequences that start from zeros, with one state row each."""
        states = torch.zeros(len(self._each), columns, device=self._each.device)
        return RaggedBatch(self._offsets, states, torch.full_like(self._each, -1), self._each)
