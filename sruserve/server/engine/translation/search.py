"""The beam search of one sentence: which hypotheses continue or have ended, and when it is over.

The score of a hypothesis of n tokens is its log-probability, divided by ((5 + n) / 6) ** α (Wu et
al. 2016, eq. 14, without the coverage; α = 0.6 in Vaswani et al. 2017). n counts the end token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sruserve.server.engine.decoding_parameters import BeamSearch
from sruserve.server.engine.results import Hypothesis
from sruserve.server.engine.translation.paths import Paths

_AHEAD = 2  # half of the best 2B continuations continue even if the others all end


@dataclass(frozen=True, slots=True)
class _Ended:
    """A hypothesis that has ended. length, place: where its path ends."""

    length: int
    place: int
    total: float
    score: float
    reason: str


class Search:
    """The hypotheses of one sentence.

    In each step, the B best continuations by log-probability are kept; an end token among them
    ends its hypothesis, and the next best one takes its place. Of equal continuations, the one of
    the better hypothesis is first, then the one with the smaller token id.

    The search is over when the `n_best` best ended hypotheses beat whatever the others may become,
    or at `limit` tokens; what has not ended then follows what has. With one beam the search is
    greedy, and over at the first end token.

    paths: the tokens of the hypotheses, the best one first. slots: (hypotheses, tokens), int32: the
    rows in the cache of each, which each step reads anyway; (1, 0) of a model without a cache.
    scores: (hypotheses), float64: their log-probabilities.
    """

    def __init__(self, options: BeamSearch, end_id: int, limit: int) -> None:
        self._options, self._end_id, self._limit = options, end_id, limit
        self.paths = Paths(options.beam_size, limit)
        self.slots = np.zeros((1, 0), np.int32)
        self.scores = np.zeros(1)
        self._attention: list[NDArray[np.float32]] = []  # of the hypotheses of each step
        self._ended: list[_Ended] = []
        self.done = False

    def resume(
        self, tokens: NDArray[np.int64], log_probability: float, finish_reason: str | None
    ) -> None:
        """Begin with one hypothesis of these tokens, for systems whose steps read no cache.

        finish_reason: of one that has ended.
        """
        self.paths.begin(tokens)
        self.scores = np.array([log_probability])
        if finish_reason is not None:
            self._end(0, log_probability, ended=finish_reason == "stop")
            self.done = True

    @property
    def candidates(self) -> int:
        """The number of best continuations of each hypothesis that a step has to know."""
        return _AHEAD * self._options.beam_size

    @property
    def hypotheses(self) -> int:
        """The number of hypotheses that continue."""
        return len(self.scores)

    @property
    def length(self) -> int:
        """The tokens of each of them."""
        return self.paths.length

    def advance(
        self,
        log_probs: NDArray[np.float32],
        ids: NDArray[np.int64],
        slots: NDArray[np.int32] | None = None,
        attention: NDArray[np.float32] | None = None,
    ) -> NDArray[np.intp]:
        """Take one step; returns the parent of each hypothesis that continues.

        log_probs, ids: (hypotheses, candidates), the best continuations of each in any order.
        slots: (hypotheses), where the step has put its cache, if there is one. attention:
        (hypotheses, source length), if it is wanted.
        """
        width = self._options.beam_size
        if attention is not None:
            self._attention.append(attention)
        totals = (self.scores[:, None] + log_probs).ravel()
        owners = np.repeat(np.arange(self.hypotheses), ids.shape[1])
        flat = ids.ravel()
        order = np.lexsort((flat, owners, -totals))[: _AHEAD * width]
        order = order[totals[order] > -np.inf]  # nor NaN
        going: list[int] = []
        for rank, at in enumerate(order):
            if flat[at] != self._end_id:
                going.append(at)
                if len(going) == width:
                    break
            elif rank < width:
                self._end(owners[at], totals[at], ended=True)
                if width == 1:
                    break
        kept = np.array(going, np.intp)
        parents = owners[kept]
        self.paths.add(flat[kept], parents)
        if slots is not None:
            self.slots = np.concatenate([self.slots, slots[:, None]], 1)[parents]
        self.scores = totals[kept]
        self.done = self._is_over()
        return parents

    def results(self) -> Sequence[Hypothesis]:
        """The best hypotheses, the best one first, once the search is over."""
        if len(self._ended) < self._options.n_best:
            for index in range(self.hypotheses):
                self._end(index, self.scores[index], ended=False)
        return [self._hypothesis(ended) for ended in self._ended]

    def unfinished(self) -> Hypothesis:
        """The best hypothesis of a search that is not over."""
        total = float(self.scores[0])
        tokens, _ = self.paths.of(self.length, 0)
        return Hypothesis(tokens, total, total / self._penalty(self.length), None)

    def _end(self, place: int, total: float, *, ended: bool) -> None:
        """Add a hypothesis to the ended ones, whose order is final for those before it."""
        score = float(total) / self._penalty(self.length + ended)
        reason = "stop" if ended else "length"
        self._ended.append(_Ended(self.length, int(place), float(total), score, reason))
        self._ended.sort(key=lambda each: (each.reason != "stop", -each.score))
        del self._ended[self._options.n_best :]

    def _hypothesis(self, ended: _Ended) -> Hypothesis:
        tokens, places = self.paths.of(ended.length, ended.place)
        attention = None
        if self._attention:
            steps = zip(self._attention, places, strict=False)
            weights = [of_step[place] for of_step, place in steps]
            attention = np.array(weights, np.float32).reshape(-1, self._attention[0].shape[1])
        return Hypothesis(tokens, ended.total, ended.score, ended.reason, attention)

    def _is_over(self) -> bool:
        if not self.hypotheses or self.length >= self._limit:
            return True
        n_best = self._options.n_best
        if len(self._ended) < n_best:
            return False
        best_possible = self.scores.max() / self._penalty(self._limit)
        return self._options.beam_size == 1 or bool(self._ended[-1].score >= best_possible)

    def _penalty(self, length: int) -> float:
        return float(((5 + length) / 6) ** self._options.length_penalty)
