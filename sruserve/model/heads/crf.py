"""A linear-chain CRF over labels (Lafferty et al. 2001), decoded by Viterbi's algorithm."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from sruserve.model.cells.stack import Shapes
from sruserve.model.heads.paths import Floats, Labels, Paths, Sources, Steps

MAX_LABELS = 256  # a step compares all pairs of labels
# A larger best score becomes 0, so that an endless stream keeps its precision. Below it, the scores
# are those of `pytorch-crf` bit for bit.
_LARGEST = 8192.0


def crf_shapes(labels: int) -> Shapes:
    """Return the shapes of its tensors, whose names and meaning are those of `pytorch-crf`."""
    return {
        "crf.start_transitions": (labels,),
        "crf.end_transitions": (labels,),
        "crf.transitions": (labels, labels),
    }


class LinearChain:
    """Scores of the first label, of the last one, and of each label after another.

    Of equal paths, the one with the lower last label is best, as in `pytorch-crf`.

    tensors: named as in `crf_shapes`; transitions: (from, to).
    window: most steps whose label may still be open after a chunk.
    """

    def __init__(self, tensors: Mapping[str, Tensor], window: int) -> None:
        self._start = _numpy(tensors["crf.start_transitions"])
        self._end = _numpy(tensors["crf.end_transitions"])
        self._into = _numpy(tensors["crf.transitions"].T)  # (to, from)
        self.labels, self.window = len(self._start), window
        self._each = np.arange(self.labels)

    @property
    def state_size(self) -> int:
        """The most numbers that a state has for the paths."""
        return Paths.packed_size(self.labels, self.window)

    def open_steps(self, packed: Floats) -> int:
        """Return the number of steps of a valid state whose label is open."""
        return Paths.packed_steps(len(packed), self.labels)

    def begin(self, packed: Floats) -> Paths:
        """Return the paths of a state; of one without numbers, those before the first step.

        Raises `ValueError` for numbers that no state of this chain has.
        """
        return Paths.unpack(packed, self.labels, self.window)

    def extend(self, paths: Paths, emissions: Floats, values: Floats) -> Paths:
        """Return the paths after further steps.

        emissions: (steps, labels): the scores of each label. values: the same shape; see `Steps`.
        """
        best, sources = paths.best, np.zeros(emissions.shape, np.uint8)
        for emission, source in zip(emissions, sources, strict=True):
            best = self._step(best, emission, source)
        return Paths(self.labels, best, (*paths.parts, Steps(sources, values)), paths.before)

    def settle(self, paths: Paths) -> tuple[Labels, Floats, Paths]:
        """Return the labels that no later step can change, their values, and the rest.

        These are the steps on which the best paths to all labels of the last step agree. A label
        whose score is -inf has no path, so nothing waits for it. If they agree on no step of the
        window, no state holds the rest, and the result is that no label is final.
        """
        steps, best = paths.steps, paths.best
        allowed = self._each if best is None else np.flatnonzero(best != -np.inf)
        count, labels = len(steps), allowed if len(allowed) else self._each
        while count and (labels != labels[0]).any():
            count -= 1
            if len(steps) - count > self.window:  # the walk over a long chunk takes a second
                return self._cut(paths, steps, 0, 0)
            labels = steps.sources[count][labels]
        return self._cut(paths, steps, count, int(labels[0]))

    def finish(self, paths: Paths) -> tuple[Labels, Floats, Paths]:
        """Return all labels that are still open, as the sequence has ended, and their values."""
        steps = paths.steps
        last = 0 if paths.best is None else int((paths.best + self._end).argmax())
        return self._cut(paths, steps, len(steps), last)

    def decode(self, scores: Tensor) -> Tensor:
        """Return the labels of the best path through a sequence, (steps), int64, on the CPU.

        scores: (steps, labels), at least one step.
        """
        emissions = _numpy(scores)
        return torch.from_numpy(
            self.finish(self.extend(Paths(self.labels), emissions, emissions))[0]
        )

    def _step(self, best: Floats | None, emission: Floats, source: Sources) -> Floats:
        """Return the score of the best path to each label, and fill in the label before it."""
        if best is None:
            return self._start + emission
        scores = best + self._into + emission[:, None]
        source[:] = scores.argmax(1)
        best = np.maximum.reduce(scores, 1)
        largest = max(best.tolist())  # of few numbers, faster than that of an array
        return best - np.float32(largest) if _LARGEST < abs(largest) < math.inf else best

    def _cut(
        self, paths: Paths, steps: Steps, count: int, last: int
    ) -> tuple[Labels, Floats, Paths]:
        """Follow the path to the label `last` of step `count - 1`, and leave out these steps."""
        if not count:
            rest = Paths(self.labels, paths.best, (steps,), paths.before)
            return np.zeros(0, np.int64), np.zeros(0, np.float32), rest
        labels = [last]
        for source in steps.sources[count - 1 : 0 : -1]:
            labels.append(int(source[labels[-1]]))
        path = np.array(labels[::-1])
        values = steps.values[np.arange(count), path]
        return path, values, Paths(self.labels, paths.best, (steps.after(count),), last)


def _numpy(tensor: Tensor) -> Floats:
    array: Floats = tensor.float().cpu().contiguous().numpy()
    return array
