"""The bytes of one text that follows a constraint, wherever its grammar is held."""

import numpy as np
from numpy.typing import NDArray

from sruserve.server.engine.alphabet import Alphabet


class Spelled:
    """What a text has taken, and what it may take next; see `TextPosition`."""

    def __init__(self, alphabet: Alphabet, spelled: bytes) -> None:
        self._alphabet = alphabet
        self._first, self._spelled = spelled, bytearray()  # texts that begin equally share that
        self._options: NDArray[np.bool_] = np.zeros(256, np.bool_)
        self._trail: list[NDArray[np.bool_]] = []  # the options before each new byte

    @property
    def spelled(self) -> bytes:
        """The bytes taken."""
        return self._first + self._spelled

    @property
    def length(self) -> int:
        """How many bytes that are."""
        return len(self._first) + len(self._spelled)

    @property
    def ahead(self) -> int:
        """Tokens taken that are not settled."""
        return len(self._trail)

    @property
    def ended(self) -> bool:
        """Whether nothing can follow: the match is whole, or there is a `problem`."""
        return not self._options.any()

    @property
    def ids(self) -> NDArray[np.int64]:
        """The tokens that may come next."""
        return self._alphabet.ids[self._options]
