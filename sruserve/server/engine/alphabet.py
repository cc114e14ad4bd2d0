"""The bytes that a model can write, and the characters that they make."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from sruserve.server.errors import UnfitInput

if TYPE_CHECKING:  # the process of a grammar does without tokenizers
    from sruserve.model.text import Codec

# What ends a text, a value or a number comes first, so that a search for an end is short.
_ORDER = b'"}]0123456789,:'
_MOST_RANGES = 500  # of characters in an expression that is fast to compile


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The bytes of a vocabulary of bytes.

    values: the byte that each id writes.
    ids: (256), int64: the id that writes each byte; -1: none does.
    writable: (256): which bytes can be written.
    order: those that can be written, likely ends first.
    """

    values: bytes
    ids: NDArray[np.int64] = field(compare=False)
    writable: NDArray[np.bool_] = field(compare=False)
    order: bytes

    @classmethod
    def of(cls, codec: "Codec | None") -> Self:
        """The alphabet of a vocabulary; raises `UnfitInput` if its ids write more than a byte."""
        if codec is None or any(len(piece) != 1 for piece in codec.pieces):
            raise UnfitInput(
                "only a model that writes single bytes can follow a regex or a schema, and this "
                "one does not: leave 'regex' and 'json_schema' out",
                code="constraint_unsupported",
            )
        return cls.of_values(b"".join(codec.pieces))

    @classmethod
    def of_values(cls, values: bytes) -> Self:
        """The alphabet of the byte that each id writes."""
        ids = np.full(256, -1, np.int64)
        ids[list(values)] = np.arange(len(values))
        first = bytes(byte for byte in _ORDER if byte in values)
        return cls(values, ids, ids >= 0, first + bytes(sorted(set(values) - set(first))))

    @property
    def texts(self) -> str | None:
        """A regular expression of all texts of bytes that can be written; None: too long a one."""
        return _texts(self.order)


@lru_cache(maxsize=16)
def _texts(values: bytes) -> str | None:
    whole = np.zeros(256, np.bool_)
    whole[list(values)] = True
    one = whole[0x80:0xC0]  # every byte of a character but its first
    two = (one[:, None] & one).ravel()
    three = (one[:, None] & two).ravel()
    writable = np.concatenate(
        [
            whole[:0x80],
            (whole[0xC0:0xE0, None] & one).ravel()[0x80:],
            (whole[0xE0:0xF0, None] & two).ravel()[0x800:],
            (whole[0xF0:0xF5, None] & three).ravel()[0x10000:0x110000],
        ]
    )
    writable[0xD800:0xE000] = False  # no characters
    edges = np.flatnonzero(np.diff(writable, prepend=False, append=False)).tolist()
    if len(edges) > 2 * _MOST_RANGES:
        return None
    ranges = zip(edges[::2], edges[1::2], strict=True)
    inside = "".join(f"\\x{{{first:x}}}-\\x{{{end - 1:x}}}" for first, end in ranges)
    return f"[{inside}]*" if inside else "(?:)"
