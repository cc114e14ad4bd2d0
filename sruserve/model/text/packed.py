"""The ids of several texts end to end: one array takes as long to make as that of one text."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Self

import numpy as np

from sruserve.model.text.frames import Ids


class PackedIds(Sequence[Ids]):
    """The ids of each text, as views of one array.

    ids: (ids), int64: those of all texts. lengths: of each text.
    """

    __slots__ = ("_ends", "ids", "lengths")

    def __init__(self, ids: Ids, lengths: list[int]) -> None:
        self.ids, self.lengths = ids, lengths
        self._ends: list[int] | None = None

    @classmethod
    def joined(cls, parts: Sequence[Ids]) -> Self:
        """Those of texts that were encoded one by one."""
        ids: Ids = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        return cls(ids, list(map(len, parts)))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Any) -> Any:
        index = range(len(self.lengths))[index]
        if self._ends is None:
            self._ends = list(accumulate(self.lengths, initial=0))
        return self.ids[self._ends[index] : self._ends[index + 1]]

    def __iter__(self) -> Iterator[Ids]:
        ids = self.ids
        return (ids[first:end] for first, end in pairwise(accumulate(self.lengths, initial=0)))
