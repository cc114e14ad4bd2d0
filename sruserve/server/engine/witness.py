"""A search for a text that completes a match with the bytes that a model can write."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from sruserve.server.engine.alphabet import Alphabet
from sruserve.server.engine.matching import END, following

_SHORT, _LONG = 64, 4096  # bytes that the first walks and the longest ones look ahead
_CHARACTER = 6  # bytes of the longest one, an escape of JSON


@dataclass(slots=True)
class Work:
    """Steps that searches may still take."""

    left: int


def witness(
    matcher: LLMatcher, alphabet: Alphabet, work: Work, hints: Sequence[bytes] = ()
) -> bytes | None:
    """Bytes that complete the match; None: there are none, or they were not found with this work.

    Walks from the matcher's position to a match, never twice into the same dead end, each second
    one twice as long as the ones before. Raises `InvalidRequest` if that is too intricate.

    hints: bytes that may well complete it, at once or behind the end of a character.
    """
    dead: dict[bytes, set[int]] = {}
    rarely = _Rarely(alphabet)
    for turn in count():
        walker, path = matcher.deep_copy(), bytearray()
        rarely.stays = bool(turn % 2)
        while not walker.is_accepting():
            for hint in hints if len(path) < _CHARACTER else ():
                if walker.validate_tokens([*hint, END]) > len(hint):
                    return bytes(path) + hint
            if work.left <= 0:
                return None
            if len(path) >= min(_SHORT << turn // 2, _LONG):
                break
            options = following(walker) & alphabet.writable
            options[list(dead.get(bytes(path), ()))] = False
            if not options.any():
                if not path:
                    return None
                dead.pop(bytes(path), None)
                dead.setdefault(bytes(path[:-1]), set()).add(path[-1])
                break
            work.left -= 1
            byte = rarely.choose(options)
            walker.consume_token(byte)
            path.append(byte)
        else:
            return bytes(path)
    return None


class _Rarely:
    """Chooses the byte that was chosen least where there were the same options: it leaves loops.

    stays: remembers that when the options have been others in between: it leaves longer loops, but
        does not end the second of two texts as early as the first one.
    """

    def __init__(self, alphabet: Alphabet) -> None:
        self._order = np.frombuffer(alphabet.order, np.uint8)
        self._chosen: dict[bytes, NDArray[np.int64]] = {}
        self._before = b""
        self.stays = False

    def choose(self, options: NDArray[np.bool_]) -> int:
        """One of the options, (256); of equals the likeliest end."""
        key = options.tobytes()
        if key != self._before and not self.stays:
            self._chosen.clear()
        self._before = key
        chosen = self._chosen.setdefault(key, np.zeros(256, np.int64))
        open_ways = self._order[options[self._order]]
        byte = int(open_ways[chosen[open_ways].argmin()])
        chosen[byte] += 1
        return byte
