"""Limit and count the containers and values in JSON: parsing takes memory, and blocks all threads.

The limits of requests keep that time below about 50 ms on a core of 2.5 GHz. Strings do not count.
"""

from collections.abc import Iterable, Iterator
from operator import le
from typing import NamedTuple

import numpy as np

from sruserve.server.errors import InputTooLong

MAX_JSON_CONTAINERS = 1 << 15  # lists, objects and fields: up to a microsecond each
MAX_JSON_VALUES = 1 << 17  # up to a few tenths of a microsecond each
# Digits and white space: the time of a long integer is the square of its number of digits.
MAX_JSON_DIGITS = 3 << 20
# Of parsing and validating, in units of `http/parse_turns.py`, about a quarter of a microsecond.
_COST_PER_PART = 4
_VALUES_PER_COST, _BYTES_PER_COST = 4, 64
_PIECE = 256 << 10  # bytes that are scanned at once
_QUOTE, _BACKSLASH = ord('"'), b"\\"
_DIGITS = b"0123456789 \t\r\n"


class JsonBounds(NamedTuple):
    """The most that a JSON text may have; `containers` is the smallest of these numbers.

    containers: lists, objects and fields. digits: with white space, outside of strings.
    """

    containers: int
    values: int
    digits: int


_OF_BODIES = JsonBounds(MAX_JSON_CONTAINERS, MAX_JSON_VALUES, MAX_JSON_DIGITS)
# What each bound counts, and what to do about too many.
PARTS = ("lists, objects and fields", "values", "digits and spaces outside of strings")
_REMEDIES = (
    "send fewer inputs or steps at once, the rest with `state`, or binary tensors to /v2",
    "send fewer at once, the rest with `state`, or binary tensors to /v2",
    "send fewer digits, and less white space",
)


def check_json_size(json: bytes) -> None:
    """Raise `InputTooLong` if parsing `json` would block for too long."""
    kind = json_excess(json, _OF_BODIES)
    if kind is not None:
        limit = f"{_OF_BODIES[kind]} {PARTS[kind]}"
        raise InputTooLong(f"the request has more than {limit}: {_REMEDIES[kind]}")


def parsing_cost(json: bytes) -> int:
    """What parsing and validating a JSON text costs at most, in units of `http/parse_turns.py`."""
    *_, (parts, values, _) = _counted(_pieces(json), count_digits=False)
    return parts * _COST_PER_PART + values // _VALUES_PER_COST + len(json) // _BYTES_PER_COST


def json_excess(json: bytes, bounds: JsonBounds) -> int | None:
    """Return the index of the first bound that a JSON text exceeds, or None."""
    if len(json) <= bounds.containers:
        return None  # there cannot be more parts than bytes
    count_digits = len(json) > bounds.digits
    *_, counts = _counted(_pieces(json), count_digits)
    if all(map(le, counts, bounds)):
        return None
    for counts in _counted(_without_strings(json), count_digits):
        for kind, bound in enumerate(bounds):
            if counts[kind] > bound:
                return kind
    return None


def _pieces(json: bytes, size: int = _PIECE) -> Iterator[bytes]:
    for begin in range(0, len(json), size):
        yield json[begin : begin + size]


def _counted(pieces: Iterable[bytes], count_digits: bool) -> Iterator[tuple[int, int, int]]:
    """Upper bounds of the parts, values and digits, up to the end of each piece."""
    parts, values, digits = 0, 1, 0
    yield parts, values, digits
    for piece in pieces:
        parts += sum(map(piece.count, (b"[", b"{", b":")))
        values += piece.count(b",")
        if count_digits:
            digits += len(piece) - len(piece.translate(None, _DIGITS))
        yield parts, values, digits


def _without_strings(json: bytes, size: int = _PIECE) -> Iterator[bytes]:
    """The JSON in pieces, with zeros for strings; exact up to the first syntax error."""
    in_string, escape = False, b""  # escape: the first half of one
    for plain in _pieces(json, size):
        piece = (escape + plain).replace(b"\\\\", b"")
        escape = _BACKSLASH if piece.endswith(_BACKSLASH) else b""
        piece = piece.removesuffix(_BACKSLASH).replace(b'\\"', b"")
        letters = np.frombuffer(piece, np.uint8)
        masked = np.bitwise_xor.accumulate(letters == _QUOTE) ^ in_string
        yield (letters * ~masked).tobytes()
        if len(masked):
            in_string = bool(masked[-1])
