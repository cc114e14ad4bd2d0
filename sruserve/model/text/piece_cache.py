"""A bounded cache of the ids of short pieces of text, because words repeat."""

from threading import Lock
from typing import TypeVar

V = TypeVar("V")

MAX_CHARACTERS = 64  # of a cached piece: longer ones seldom repeat
MAX_BYTES = 8 << 20
# CPython's bytes, rounded up: an entry with its text and its list; a character; a list's number.
_ENTRY, _CHARACTER, _NUMBER = 300, 4, 40


class PieceCache(dict[str, V]):
    """Integers by piece: look up as in any dict, from any thread; insert only by `add`.

    max_bytes: limit on all entries together. An entry that would exceed it clears the cache first.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        super().__init__()
        self._free_bytes = self._max_bytes = max_bytes
        self._lock = Lock()

    def add(self, piece: str, value: V, numbers: int) -> None:
        """Cache a piece, if it is short. numbers: how many integers its value has."""
        size = _ENTRY + _CHARACTER * len(piece) + _NUMBER * numbers
        if len(piece) > MAX_CHARACTERS or size > self._max_bytes:
            return
        with self._lock:
            if size > self._free_bytes:
                self.clear()
                self._free_bytes = self._max_bytes
            if piece not in self:
                self._free_bytes -= size
                self[piece] = value
