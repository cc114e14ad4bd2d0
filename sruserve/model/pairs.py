"""Pairs of sequences: each side becomes one row, and both rows become a pair's features."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sruserve.kernels import Cell, Kind, Multiply, RaggedBatch, scan
from sruserve.kernels.devices import send
from sruserve.model.pooling import PoolLayer
from sruserve.model.softmaxes import padded


@dataclass(frozen=True, slots=True)
class StepScores:
    """Which steps of a side matter: s = v . tanh(W x + b), as in the LRN repository's NLI model."""

    inner: Multiply
    score: Multiply

    def __call__(self, x: Tensor) -> Tensor:
        """Score steps (rows, width): (rows, 1), float32."""
        return self.score(self.inner(padded(x)).tanh(), torch.float32)[: len(x)]


class PairFeatures:
    """What is known of each pair, from the outputs at all steps of both sides.

    pooling: how a side's outputs become one row: "last", "mean", "max" or "attention".
    difference: features [a; b; |a - b|; a * b] (Conneau et al. 2017) instead of [a; b].
    attention: for pooling by attention, that of the first side and of the second.
    """

    def __init__(
        self, pooling: str, width: int, difference: bool, attention: Sequence[StepScores] = ()
    ) -> None:
        self._pooling, self._width = pooling, width
        self._difference, self._attention = difference, attention

    def __call__(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Describe pairs: (pairs, features), the dtype of `hidden`.

        hidden: (rows, width), all steps of the first pair's first side, of its second side, of
            the second pair's first side, and so on.
        lengths: (2 * pairs): the steps of each side, at least one.
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
        """The mean of a side's steps, weighted by the softmax of their scores."""
        scores = hidden.new_empty(len(hidden), 1, dtype=torch.float32)
        for rows, attention in zip(sides.rows, self._attention, strict=True):
            scores[rows] = attention(hidden.index_select(0, rows))
        largest = sides.pooled(scores, mean=False)
        weights = (scores - largest.index_select(0, sides.of_row)).exp_()
        total = sides.summed(torch.cat((weights * hidden.float(), weights), 1))
        return (total[:, :-1] / total[:, -1:]).to(hidden.dtype)


class _Sides:
    """Where each side's rows are, on `device`, and what can be taken over them."""

    def __init__(self, lengths: Tensor, device: torch.device) -> None:
        offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
        of_row = torch.arange(len(lengths)).repeat_interleave(lengths)
        self.rows = [send((of_row % 2 == side).nonzero()[:, 0], device) for side in range(2)]
        self.of_row = send(of_row, device)
        self._ends = send(offsets[1:] - 1, device)
        self._offsets = send(offsets, device)
        self._each = torch.arange(len(lengths), device=device)

    def last(self, x: Tensor) -> Tensor:
        """The last row of each side."""
        return x.index_select(0, self._ends)

    def pooled(self, x: Tensor, mean: bool) -> Tensor:
        """The mean or the maximum of each side's rows, in their dtype."""
        width = x.shape[1]
        layer = PoolLayer(mean, width, 0, width)
        return self.last(layer(x, self._batch(width + 1)))

    def summed(self, x: Tensor) -> Tensor:
        """The sum of each side's rows, (rows, n), float32, added in order."""
        batch = self._batch(x.shape[1])
        scan(x, None, None, None, batch, 0, Cell(kind=Kind.SUM, blocks=1))
        return batch.states

    def _batch(self, columns: int) -> RaggedBatch:
        """The sides as sequences that start from nothing, with a state row each."""
        states = torch.zeros(len(self._each), columns, device=self._each.device)
        return RaggedBatch(self._offsets, states, torch.full_like(self._each, -1), self._each)
