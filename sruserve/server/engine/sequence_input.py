"""The sequences that a job reads: each as a value, or many packed whole texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sruserve.model.text.packed import PackedIds
from sruserve.server.engine.snapshot import Snapshot


@dataclass(slots=True)  # not frozen: a frozen one takes 0.6 µs more, and each input is one
class SequenceInput:
    """One sequence of a job.

    inputs: (steps), int64 token ids, or (steps, features), float32.
    start: the state to continue; None starts from zeros.
    word: the unfinished word that the end state carries.
    more: more chunks of the text follow.
    seed, choice: the sampler's key (GENERATE).
    first: number of inputs that are the first of the two sequences (COMPARE, ANSWER).
    """

    inputs: NDArray[np.int64] | NDArray[np.float32]
    start: Snapshot | None = None
    word: str = ""
    more: bool = False
    seed: int = 0
    choice: int = 0
    first: int | None = None

    def tail(self, steps: int) -> tuple[str, tuple[int, ...]]:
        """The text of the last steps, some of which may be of earlier chunks, and their places.

        An end state carries them if the labels of these steps are open. Empty for ids and features.
        """
        del steps
        return "", ()


class PackedInputs(Sequence[SequenceInput]):
    """Whole texts that begin from zeros. Each of many costs more as an object than as a number.

    It is recognized by `type(...) is`: `isinstance` of an abstract class calls a Python function.

    ids: of each text, none of which is empty.
    """

    __slots__ = ("ids",)

    def __init__(self, ids: PackedIds) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Any) -> Any:
        return SequenceInput(self.ids[index])

    def __iter__(self) -> Iterator[SequenceInput]:
        return map(SequenceInput, self.ids)
