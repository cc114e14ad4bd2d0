"""One text on its way through a constraint, byte by byte; it never steps into a dead end."""

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from sruserve.server.engine.alphabet import Alphabet
from sruserve.server.engine.matching import END, following
from sruserve.server.engine.spelled import Spelled
from sruserve.server.engine.witness import Work, witness
from sruserve.server.errors import InvalidRequest, ServeError

_MOST_WORK = 1000  # steps that a search may take, about 20 ms
_EARNED = 32  # of them for every byte


class Spelling(Spelled):
    """The position of one text. Tokens taken since the last `settle` can be taken back.

    matcher: at the position that `spelled` led to; from now on the spelling's own.
    way: bytes that complete the match from here; None: no option of the matcher is a dead end.
    """

    def __init__(
        self, matcher: LLMatcher, alphabet: Alphabet, spelled: bytes, way: bytes | None
    ) -> None:
        super().__init__(alphabet, spelled)
        self._matcher, self._way = matcher, way
        self._work = Work(_MOST_WORK)
        self._ways: list[bytes | None] = []  # before each new byte
        self._next: dict[int, bytes] = {}  # ways behind bytes that may come next
        self.problem: ServeError | None = None
        self.late = False
        self._options = self._found()

    @property
    def options(self) -> NDArray[np.bool_]:
        """Which bytes may come next, (256)."""
        return self._options

    def copy(self) -> "Spelling":
        """See `TextPosition`."""
        return Spelling(self._matcher.deep_copy(), self._alphabet, self._first, self._way)

    def ready(self, until: float = 0.0) -> bool:  # noqa: ARG002
        """See `TextPosition`: it always is."""
        return True

    def expect(self, token: int) -> int:
        """See `TextPosition`: there is nothing to begin with."""
        return token

    def take(self, token: int) -> bool:
        """Go on by one of `ids`; False: that is a dead end, and now it is none of them."""
        byte = self._alphabet.values[token]
        way = self._way
        if way is not None:
            way = self._way_after(byte)
            if way is None:
                self._options[byte] = False
                return False
        self._trail.append(self._options)
        self._ways.append(self._way)
        self._matcher.consume_token(byte)
        self._spelled.append(byte)
        self._way = way
        self._work.left = min(_MOST_WORK, self._work.left + _EARNED)
        self._next.clear()
        self._options = self._found()
        return True

    def settle(self, count: int) -> None:
        """Keep the first `count` of the tokens ahead, and take the others back."""
        back = len(self._trail) - count
        if back:
            self._matcher.rollback(back)
            del self._spelled[-back:]
            self._options, self._way = self._trail[count], self._ways[count]
            self._next.clear()
        self._trail.clear()
        self._ways.clear()

    def _found(self) -> NDArray[np.bool_]:
        """The bytes that may come next. Behind a match the first of them is made sure of."""
        try:
            options = following(self._matcher) & self._alphabet.writable
        except InvalidRequest as error:
            self.problem = error
            return np.zeros(END, np.bool_)
        if self._way is not None and self._matcher.is_accepting():
            for byte in self._alphabet.order:
                if options[byte]:
                    way = self._way_after(byte)
                    if way is not None:
                        self._next[byte] = way
                        break
                    options[byte] = False
        return options

    def _way_after(self, byte: int) -> bytes | None:
        """Bytes that complete the match behind `byte`, if any are found."""
        way = self._way
        assert way is not None
        if way[:1] == bytes([byte]):
            return way[1:]
        if byte in self._next:
            return self._next[byte]
        there = self._matcher.deep_copy()
        there.consume_token(byte)
        same = (way, way[1:])  # mostly a text became longer, or has another character
        try:
            return witness(there, self._alphabet, self._work, same)
        except InvalidRequest:  # too intricate to look into
            return None
