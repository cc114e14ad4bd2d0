"""A linear-chain CRF over labels (Lafferty et al. 2001), decoded by Viterbi's algorithm."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sruserve.model.cells.stack import Builder, Shapes

MAX_LABELS = 256  # a step compares all pairs of labels


def crf_shapes(labels: int) -> Shapes:
    """Return the shapes of its tensors, whose names and meaning are those of `pytorch-crf`."""
    return {
        "crf.start_transitions": (labels,),
        "crf.end_transitions": (labels,),
        "crf.transitions": (labels, labels),
    }


class LinearChain:
    """Scores of the first label, of the last one, and of each label after another.

    tensors: named as in `crf_shapes`; transitions: (from, to).
    """

    def __init__(self, tensors: Mapping[str, Tensor], builder: Builder) -> None:
        self._start = builder.exact(tensors["crf.start_transitions"])
        self._end = builder.exact(tensors["crf.end_transitions"])
        self._transitions = builder.exact(tensors["crf.transitions"])

    def decode(self, scores: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return the labels of the best path through each sequence, (rows), int64, on the CPU.

        scores: (rows, labels), float32: those of each step; sequences end to end.
        lengths: (sequences): the number of steps of each, at least one. Of equal paths, the one
            with the lower last label is best, as in `pytorch-crf`.
        """
        order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        parts = torch.split(scores, list(lengths))
        emissions = torch.nn.utils.rnn.pad_sequence([parts[i] for i in order])
        sizes = [lengths[i] for i in order]
        best = self._start + emissions[0]
        back = torch.zeros(emissions.shape, dtype=torch.int64, device=scores.device)
        running = len(sizes)
        for step in range(1, len(emissions)):
            while sizes[running - 1] <= step:
                running -= 1
            through = best[:running, :, None] + self._transitions
            through = through + emissions[step, :running, None, :]
            value, source = through.max(1)
            best[:running] = value
            back[step, :running] = source
        last = (best + self._end).argmax(1).tolist()
        paths = [
            _backwards(back[:size, i].cpu().numpy(), label)
            for i, (size, label) in enumerate(zip(sizes, last, strict=True))
        ]
        by_sequence = dict(zip(order, paths, strict=True))
        return torch.tensor([label for i in range(len(lengths)) for label in by_sequence[i]])


def _backwards(back: NDArray[np.int64], label: int) -> list[int]:
    """Follow the best path from its last label. back: (steps, labels): each label's predecessor."""
    path = [label]
    for row in back[:0:-1]:
        path.append(int(row[path[-1]]))
    return path[::-1]
