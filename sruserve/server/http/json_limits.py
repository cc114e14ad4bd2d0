"""Limit the containers and values in request JSON, because parsing blocks all other threads.

The limits keep that time below about 50 ms on a core of 2.5 GHz. Strings do not count.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from sruserve.server.errors import InputTooLong

MAX_JSON_CONTAINERS = 1 << 15  # lists, objects and fields: up to a microsecond each
MAX_JSON_VALUES = 1 << 17  # up to a few tenths of a microsecond each
# Digits and white space: the time of a long integer is the square of its number of digits.
MAX_JSON_DIGITS = 3 << 20
_PIECE = 256 << 10  # bytes that are scanned at once
_QUOTE, _BACKSLASH = ord('"'), b"\\"
_DIGITS = b"0123456789 \t\r\n"


def check_json_size(json: bytes) -> None:
    """Raise `InputTooLong` if parsing `json` would block for too long."""
    if len(json) <= MAX_JSON_CONTAINERS:
        return  # there cannot be more parts than bytes
    count_digits = len(json) > MAX_JSON_DIGITS
    *_, (parts, values, digits) = _counted(_pieces(json), count_digits)
    if parts <= MAX_JSON_CONTAINERS and values <= MAX_JSON_VALUES and digits <= MAX_JSON_DIGITS:
        return
    for parts, values, digits in _counted(_without_strings(json), count_digits):
        if parts > MAX_JSON_CONTAINERS:
            raise InputTooLong(
                f"the body has more than {MAX_JSON_CONTAINERS} lists, objects and fields: send "
                "fewer inputs or steps at once, the rest with `state`, or binary tensors to /v2"
            )
        if values > MAX_JSON_VALUES:
            raise InputTooLong(
                f"the body has more than {MAX_JSON_VALUES} values: send fewer at once, the rest "
                "with `state`, or binary tensors to /v2"
            )
        if digits > MAX_JSON_DIGITS:
            raise InputTooLong(
                f"the body has more than {MAX_JSON_DIGITS} digits and spaces outside of strings: "
                "send fewer digits, and less white space"
            )


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
