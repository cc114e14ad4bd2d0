"""The bytes that a model can write, and the characters that they encode."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from sruserve.server.errors import UnfitInput

if TYPE_CHECKING:  # grammar processes run without tokenizers
    from sruserve.model.text.codec import Codec

# Bytes that end a text, a value or a number are first, so that a completion search is short.
_ORDER = b'"}]0123456789,:'
_MAX_RANGES = 500  # of characters in an expression that compiles fast


@dataclass(frozen=True, slots=True)
class ByteVocabulary:
    """A vocabulary whose tokens are single bytes.

    values: the byte that each token id writes.
    ids: (256), int64: the token id that writes each byte; -1: none does.
    writable: (256), bool: which bytes can be written.
    order: the writable bytes, likely ends first.
    """

    values: bytes
    ids: NDArray[np.int64] = field(compare=False)
    writable: NDArray[np.bool_] = field(compare=False)
    order: bytes

    @classmethod
    def of(cls, codec: "Codec | None") -> Self:
        """The vocabulary of a codec; raises `UnfitInput` without one, or if a token is no byte."""
        if (
            codec is None
            or codec.ends is not None
            or any(len(piece) != 1 for piece in codec.pieces)
        ):
            raise UnfitInput(
                "only a model that writes single bytes can follow a regex or a schema, and this "
                "one does not: leave 'regex' and 'json_schema' out",
                code="constraint_unsupported",
            )
        return cls.of_values(b"".join(codec.pieces))

    @classmethod
    def of_values(cls, values: bytes) -> Self:
        """The vocabulary of the byte that each token id writes."""
        ids = np.full(256, -1, np.int64)
        ids[list(values)] = np.arange(len(values))
        first = bytes(byte for byte in _ORDER if byte in values)
        return cls(values, ids, ids >= 0, first + bytes(sorted(set(values) - set(first))))

    @property
    def text_pattern(self) -> str | None:
        """A regular expression that matches all texts of writable bytes; None: it is too long."""
        ranges = _character_ranges(self.order)
        return _text_of(ranges) if len(ranges) <= _MAX_RANGES else None

    def spellable_text(self, in_json: bool) -> str:
        """A regular expression that matches texts of writable characters, at least of the first.

        in_json: of those that can be written in a string of JSON, if need be as an escape.
        """
        return _text_of(_character_ranges(self.order, in_json)[:_MAX_RANGES])


def _text_of(ranges: Sequence[str]) -> str:
    return f"[{''.join(ranges)}]*" if ranges else "(?:)"


@lru_cache(maxsize=16)
def _character_ranges(values: bytes, in_json: bool = False) -> list[str]:
    """The ranges of characters that some bytes encode, for a class: at most one too many."""
    is_writable = np.zeros(256, np.bool_)
    is_writable[list(values)] = True
    one_more = is_writable[0x80:0xC0]  # UTF-8 continuation bytes
    two_more = (one_more[:, None] & one_more).ravel()
    three_more = (one_more[:, None] & two_more).ravel()
    characters = np.concatenate(
        [
            is_writable[:0x80],
            (is_writable[0xC0:0xE0, None] & one_more).ravel()[0x80:],
            (is_writable[0xE0:0xF0, None] & two_more).ravel()[0x800:],
            (is_writable[0xF0:0xF5, None] & three_more).ravel()[0x10000:0x110000],
        ]
    )
    characters[0xD800:0xE000] = False  # surrogates are no characters
    if in_json:
        escapes = (json.dumps(chr(character))[1:-1].encode() for character in range(0x80))
        characters[:0x80] = [all(is_writable[list(escape)]) for escape in escapes]
    edges = np.flatnonzero(np.diff(characters, prepend=False, append=False))
    edges = edges[: 2 * (_MAX_RANGES + 1)].tolist()
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [f"\\x{{{first:x}}}-\\x{{{end - 1:x}}}" for first, end in pairs]
