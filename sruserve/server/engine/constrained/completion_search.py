"""A search for bytes that complete a match and that the model can write."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.grammar import END, allowed_bytes
from sruserve.server.errors import InvalidRequest

_FIRST_WALK, _LONGEST_WALK = 64, 4096  # bytes
_LONGEST_CHARACTER = 6  # bytes: an escape of JSON
_QUOTE = ord('"')
_NOT_FOUND = (
    "the regex or schema cannot be followed: the search for a text that matches takes too many "
    "steps; simplify it, or let each pattern describe its whole string, from ^ to $"
)


@dataclass(slots=True)
class SearchBudget:
    """The number of steps that searches may still take."""

    left: int


class Guesses(NamedTuple):
    """Texts that a search tries before it walks.

    matches: likely completions, from the matcher's position or from the end of the next character.
    strings: likely insides of JSON strings, as ends of the string at the matcher's position and of
        those that begin on the way. One of three walks tries none.
    """

    matches: tuple[bytes, ...] = ()
    strings: tuple[bytes, ...] = ()


NO_GUESSES = Guesses()


def find_completion(
    matcher: LLMatcher,
    vocabulary: ByteVocabulary,
    budget: SearchBudget,
    guesses: Guesses = NO_GUESSES,
) -> bytes | None:
    """Find bytes that complete the match; None: there are none.

    The search walks from the matcher's position until it reaches a match. It never enters a dead
    end twice, and doubles the length of its walks after every second one. Raises `InvalidRequest`
    if the budget is too small, or if the grammar is too intricate.
    """
    dead_ends: dict[bytes, set[int]] = {}
    least_used_first = _LeastUsedFirst(vocabulary)
    for walk in count():
        walker, path = matcher.deep_copy(), bytearray()
        least_used_first.keeps_counts = bool(walk % 2)
        while not walker.is_accepting():
            for match in guesses.matches if len(path) < _LONGEST_CHARACTER else ():
                if walker.validate_tokens([*match, END]) > len(match):
                    return bytes(path) + match
            if budget.left <= 0:
                raise InvalidRequest(_NOT_FOUND)
            if len(path) >= min(_FIRST_WALK << walk // 2, _LONGEST_WALK):
                break
            if walk % 3 < 2 and (len(path) < _LONGEST_CHARACTER or path[-1] == _QUOTE):
                end = _string_end(walker, guesses.strings)
                if end:
                    budget.left -= 1
                    walker.consume_tokens(list(end))
                    path += end
                    continue
            options = allowed_bytes(walker) & vocabulary.writable
            options[list(dead_ends.get(bytes(path), ()))] = False
            if not options.any():
                if not path:
                    return None
                dead_ends.pop(bytes(path), None)
                dead_ends.setdefault(bytes(path[:-1]), set()).add(path[-1])
                break
            budget.left -= 1
            byte = least_used_first.choose(options)
            walker.consume_token(byte)
            path.append(byte)
        else:
            return bytes(path)
    return None


def _string_end(walker: LLMatcher, strings: Sequence[bytes]) -> bytes:
    """The first of some strings that can end a string here, with its quote; b"": none can."""
    for string in strings:
        end = string + b'"'
        if walker.validate_tokens(list(end)) == len(end):
            return end
    return b""


class _LeastUsedFirst:
    """Chooses the byte that it chose least often among the same options, so that walks leave loops.

    keeps_counts: keep the counts when the options change in between. Walks then leave longer
        loops, but do not end the second of two texts as early as the first one.
    """

    def __init__(self, vocabulary: ByteVocabulary) -> None:
        self._order = np.frombuffer(vocabulary.order, np.uint8)
        self._counts: dict[bytes, NDArray[np.int64]] = {}
        self._last_key = b""
        self.keeps_counts = False

    def choose(self, options: NDArray[np.bool_]) -> int:
        """Choose one of the options, (256), bool; among equals, the likeliest end."""
        key = options.tobytes()
        if key != self._last_key and not self.keeps_counts:
            self._counts.clear()
        self._last_key = key
        counts = self._counts.setdefault(key, np.zeros(256, np.int64))
        candidates = self._order[options[self._order]]
        byte = int(candidates[counts[candidates].argmin()])
        counts[byte] += 1
        return byte
