"""The progress of one text through a constraint, wherever its grammar runs."""

import numpy as np
from numpy.typing import NDArray

from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary


class ConstraintProgress:
    """The bytes that a text has consumed, and its options; see `TextPosition`."""

    def __init__(self, vocabulary: ByteVocabulary, consumed: bytes) -> None:
        self._vocabulary = vocabulary
        self._first, self._consumed = consumed, bytearray()  # copies of a text share `_first`
        self._options: NDArray[np.bool_] = np.zeros(256, np.bool_)
        self._history: list[NDArray[np.bool_]] = []  # the options before each uncommitted byte

    @property
    def consumed(self) -> bytes:
        """The bytes consumed."""
        return self._first + self._consumed

    @property
    def length(self) -> int:
        """The number of bytes consumed."""
        return len(self._first) + len(self._consumed)

    @property
    def uncommitted(self) -> int:
        """The number of tokens consumed since the last `commit`."""
        return len(self._history)

    @property
    def ended(self) -> bool:
        """Whether no token may follow: the match is complete, or there is a `problem`."""
        return not self._options.any()

    @property
    def allowed_ids(self) -> NDArray[np.int64]:
        """The ids of the tokens that may follow."""
        return self._vocabulary.ids[self._options]
