"""The best path to each label of a CRF, step by step, and the steps whose label is still open."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Sources = NDArray[np.uint8]
Labels = NDArray[np.int64]

_LOWEST = np.finfo(np.float32).min  # in place of -inf, which a state must not have


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps whose label is still open.

    sources: (steps, labels), uint8: the label of the step before, on the best path to each label.
    values: (steps, labels), float32: what a reply shows for each label.
    """

    sources: Sources
    values: Floats

    @classmethod
    def joined(cls, parts: tuple["Steps", ...], labels: int) -> "Steps":
        """Steps in order as one."""
        if len(parts) == 1:
            return parts[0]
        sources = np.zeros((0, labels), np.uint8), *(part.sources for part in parts)
        values = np.zeros((0, labels), np.float32), *(part.values for part in parts)
        return cls(np.concatenate(sources), np.concatenate(values))

    def __len__(self) -> int:
        return len(self.values)

    def after(self, count: int) -> "Steps":
        """Copy the steps from number `count` on."""
        return Steps(self.sources[count:].copy(), self.values[count:].copy())


@dataclass(frozen=True, slots=True)
class Paths:
    """What a CRF remembers of a sequence.

    labels: number of labels.
    best: (labels), float32: the score of the best path to each label of the last step; None before
        the first.
    parts: the steps whose label is still open, in order.
    before: the label of the step before those; -1: there is none.
    """

    labels: int
    best: Floats | None = None
    parts: tuple[Steps, ...] = ()
    before: int = -1

    @property
    def steps(self) -> Steps:
        """The steps whose label is still open."""
        return Steps.joined(self.parts, self.labels)

    @property
    def is_finite(self) -> bool:
        """Whether the scores of the paths are numbers; -inf forbids a label."""
        return self.best is None or bool((self.best < np.inf).all())

    @staticmethod
    def packed_size(labels: int, steps: int) -> int:
        """Return the size of `pack` for this number of open steps."""
        return 1 + labels * (1 + 2 * steps)

    def pack(self) -> Floats:
        """Join all numbers into one vector, float32; empty before the first step."""
        if self.best is None:
            return np.zeros(0, np.float32)
        steps, best = self.steps, np.where(self.best == -np.inf, _LOWEST, self.best)
        parts = [self.before], best, steps.sources.ravel(), steps.values.ravel()
        return np.concatenate(parts, dtype=np.float32)

    @staticmethod
    def packed_steps(numbers: int, labels: int) -> int:
        """Return the number of open steps that this many numbers of `pack` have."""
        return max(0, numbers - 1 - labels) // (2 * labels)

    @classmethod
    def unpack(cls, packed: Floats, labels: int, window: int) -> Self:
        """Return the paths that `pack` has joined, of at most `window` open steps.

        Raises `ValueError` for numbers that no such paths have.
        """
        if not len(packed):
            return cls(labels)
        numbers = len(packed) - cls.packed_size(labels, 0)
        if not 0 <= numbers <= 2 * labels * window or numbers % (2 * labels):
            raise ValueError(f"{len(packed)} numbers are no paths of {labels} labels")
        best, rest = packed[1 : 1 + labels], packed[1 + labels :]
        sources, values = rest.reshape(2, -1, labels)
        if not np.isfinite(packed).all():
            raise ValueError("the numbers of the paths are not finite")
        if packed[0] != -1 and not _are_labels(packed[:1], labels):
            raise ValueError(f"the label before the open steps is none of the {labels} labels")
        if not _are_labels(sources, labels):
            raise ValueError(f"the source of a path is none of the {labels} labels")
        steps = Steps(sources.astype(np.uint8), values)
        best = np.where(best == _LOWEST, np.float32(-np.inf), best)
        return cls(labels, best, (steps,), int(packed[0]))


def _are_labels(numbers: Floats, labels: int) -> bool:
    inside = (numbers >= 0) & (numbers < labels) & (numbers == np.floor(numbers))
    return bool(inside.all())
