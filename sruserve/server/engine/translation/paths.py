"""The tokens of all hypotheses of a search: each step adds one to each, and names its parent."""

import numpy as np
from numpy.typing import NDArray

_FIRST = 16  # steps that there is room for in the beginning


class Paths:
    """For each step the token of each hypothesis, and the hypothesis before it.

    A step costs the same however many precede it: no hypothesis has a copy of its tokens.

    width: the most hypotheses of a step. limit: the most steps. length: the number of steps.
    """

    def __init__(self, width: int, limit: int) -> None:
        self._limit, self.length = limit, 0
        self._tokens = np.empty((min(_FIRST, limit), width), np.int64)
        self._parents = np.empty(self._tokens.shape, np.int32)

    def begin(self, tokens: NDArray[np.int64]) -> None:
        """Begin with the tokens of one hypothesis, before any step."""
        self.length = len(tokens)
        shape = max(self.length, len(self._tokens)), self._tokens.shape[1]
        self._tokens, self._parents = np.empty(shape, np.int64), np.zeros(shape, np.int32)
        self._tokens[: self.length, 0] = tokens

    def add(self, tokens: NDArray[np.int64], parents: NDArray[np.intp]) -> None:
        """Add a step. tokens, parents: (hypotheses); parents are places in the step before."""
        if self.length == len(self._tokens):
            more = np.empty_like(self._tokens[: self._limit - self.length])
            self._tokens = np.concatenate([self._tokens, more])
            self._parents = np.concatenate([self._parents, more.astype(np.int32)])
        self._tokens[self.length, : len(tokens)] = tokens
        self._parents[self.length, : len(tokens)] = parents
        self.length += 1

    def last(self, count: int) -> NDArray[np.int64]:
        """The last token of each of so many hypotheses."""
        return self._tokens[self.length - 1, :count]

    def first_since(self, step: int) -> NDArray[np.int64]:
        """The tokens from a step on of the only hypothesis of a greedy search."""
        return self._tokens[step : self.length, 0]

    def of(self, length: int, place: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The hypothesis of this place after so many steps: its tokens, and the place before each.

        Returns two arrays of (length).
        """
        steps, at = np.arange(length), np.empty(length, np.intp)
        parent = self._parents.item  # the fastest way to read one number
        for step in range(length - 1, -1, -1):
            at[step] = place
            place = parent(step, place)
        return self._tokens[steps, at], self._parents[steps, at]
