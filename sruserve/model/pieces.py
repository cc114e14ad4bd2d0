"""What short pieces of text became, kept within a bound of bytes, because words come again."""

from threading import Lock

MOST_CHARACTERS = 64  # of a piece that is kept: longer ones seldom come again
MOST_BYTES = 8 << 20
# CPython's, rounded up: an entry with its text and its list; a character; a number in the list.
_ENTRY, _CHARACTER, _NUMBER = 300, 4, 40


class Pieces(dict[str, list[int]]):
    """Numbers by piece: look up as in any dict, from any thread, but insert by `keep` alone.

    most_bytes: of all entries together; when they would be more, all are forgotten.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        super().__init__()
        self._left = self._most = most_bytes
        self._lock = Lock()

    def keep(self, piece: str, numbers: list[int]) -> None:
        """Remember a piece, if it is short."""
        size = _ENTRY + _CHARACTER * len(piece) + _NUMBER * len(numbers)
        if len(piece) > MOST_CHARACTERS or size > self._most:
            return
        with self._lock:
            if size > self._left:
                self.clear()
                self._left = self._most
            if piece not in self:
                self._left -= size
                self[piece] = numbers
