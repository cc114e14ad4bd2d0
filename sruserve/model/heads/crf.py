"""A linear-chain CRF over labels (Lafferty et al. 2001), decoded by Viterbi's algorithm."""

from collections.abc import Mapping

import torch
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

    def decode(self, scores: Tensor) -> Tensor:
        """Return the labels of the best path through a sequence, (steps), int64, on the CPU.

        scores: (steps, labels), float32, at least one step. Of equal paths, the one with the lower
            last label is best, as in `pytorch-crf`.
        """
        best = self._start + scores[0]
        back = []
        for emission in scores[1:]:
            best, source = (best[:, None] + self._transitions + emission).max(0)
            back.append(source)
        path = [int((best + self._end).argmax())]
        for row in torch.stack(back).flip(0).tolist() if back else ():
            path.append(row[path[-1]])
        return torch.tensor(path[::-1])
