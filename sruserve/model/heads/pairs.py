"""Pairs of sequences: each side becomes one row, and both rows become a pair's features."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sruserve.kernels import LinearOp
from sruserve.kernels.devices import copy_to_device
from sruserve.model.heads.segments import Segments
from sruserve.model.heads.softmaxes import padded


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
        sides = Segments(torch.tensor(lengths), hidden.device)
        if self._pooling == "attention":
            rows = self._attended(hidden, sides)
        elif self._pooling == "last":
            rows = sides.last(hidden)
        else:
            rows = sides.pooled(hidden, mean=self._pooling == "mean")
        a, b = rows.view(-1, 2, self._width).unbind(1)
        parts = [a, b, (a - b).abs(), a * b] if self._difference else [a, b]
        return torch.cat(parts, 1)

    def _attended(self, hidden: Tensor, sides: Segments) -> Tensor:
        """Return the mean of each side's steps, weighted by the softmax of their scores."""
        scores = hidden.new_empty(len(hidden), 1, dtype=torch.float32)
        for side, attention in enumerate(self._attention):
            rows = copy_to_device((sides.of_row % 2 == side).nonzero()[:, 0], hidden.device)
            scores[rows] = attention(hidden.index_select(0, rows))
        return sides.attended(hidden, scores)
