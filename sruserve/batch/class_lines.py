"""Lines with classes, made for many inputs at once: one by one, they take twice as long."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sruserve.server.json_output import json_bytes


class ClassLines:
    """Writes what `ClassifyTask.describe` says of inputs without states, each beside its number.

    labels: of the model; no two are equal.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = [json_bytes(label) for label in labels]
        scores = b",".join(label.replace(b"%", b"%%") + b":%b" for label in self._labels)
        self._form = b'{"line":%d,"label":%b,"score":%b,"scores":{' + scores + b"}}\n"

    def write(self, lines: Sequence[int], scores: NDArray[np.float32]) -> bytes:
        """Return lines of JSON. scores: those of each line's input, (lines, classes)."""
        count, classes = len(scores), len(self._labels)
        best = scores.argmax(1)
        numbers = json_bytes(scores.ravel().tolist())[1:-1].split(b",")
        fields = 3 + classes
        values: list[Any] = [None] * (count * fields)  # of all lines, one after the other
        values[0::fields] = lines
        values[1::fields] = [self._labels[label] for label in best.tolist()]
        places = best + np.arange(count) * classes
        values[2::fields] = [numbers[place] for place in places.tolist()]
        for label in range(classes):
            values[3 + label :: fields] = numbers[label::classes]
        return (self._form * count) % tuple(values)


@lru_cache(maxsize=8)
def class_lines(labels: tuple[str, ...]) -> ClassLines:
    """Return what writes the lines of a model with these labels."""
    return ClassLines(labels)
