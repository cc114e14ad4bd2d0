"""How many parts a client's JSON may have: the parser stops all other threads until it is through.

The bounds keep that time below about 50 ms on a core of 2.5 GHz. Texts do not count.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from sruserve.server.errors import InputTooLong

MAX_JSON_CONTAINERS = 1 << 15  # lists, objects and fields: a microsecond or less each
MOST_VALUES = 1 << 17  # a few tenths of one
# Digits and white space: integers of thousands of digits take the square of their number.
MOST_DIGITS = 3 << 20
_PIECE = 256 << 10  # bytes that are looked at in one go
_QUOTE, _BACKSLASH = ord('"'), b"\\"
_DIGITS = b"0123456789 \t\r\n"


def check_json_size(json: bytes) -> None:
    """Raise `InputTooLong` if parsing `json` would take long."""
    if len(json) <= MAX_JSON_CONTAINERS:
        return  # it has fewer parts than bytes
    many = len(json) > MOST_DIGITS
    *_, (parts, values, digits) = _counted(_pieces(json), many)
    if parts <= MAX_JSON_CONTAINERS and values <= MOST_VALUES and digits <= MOST_DIGITS:
        return
    for parts, values, digits in _counted(_without_texts(json), many):
        if parts > MAX_JSON_CONTAINERS:
            raise InputTooLong(
                f"the body holds more than {MAX_JSON_CONTAINERS} lists, objects and fields: send "
                "fewer inputs or steps at once, the rest with `state`, or binary tensors to /v2"
            )
        if values > MOST_VALUES:
            raise InputTooLong(
                f"the body holds more than {MOST_VALUES} values: send fewer at once, the rest with "
                "`state`, or binary tensors to /v2"
            )
        if digits > MOST_DIGITS:
            raise InputTooLong(
                f"the body has more than {MOST_DIGITS} digits and spaces outside of texts: send "
                "fewer digits, and less white space"
            )


def _pieces(json: bytes, size: int = _PIECE) -> Iterator[bytes]:
    for at in range(0, len(json), size):
        yield json[at : at + size]


def _counted(pieces: Iterable[bytes], count_digits: bool) -> Iterator[tuple[int, int, int]]:
    """The most parts, values and digits that there can be, up to each piece."""
    parts, values, digits = 0, 1, 0
    yield parts, values, digits
    for piece in pieces:
        parts += sum(map(piece.count, (b"[", b"{", b":")))
        values += piece.count(b",")
        if count_digits:
            digits += len(piece) - len(piece.translate(None, _DIGITS))
        yield parts, values, digits


def _without_texts(json: bytes, size: int = _PIECE) -> Iterator[bytes]:
    """The JSON piece by piece, zeros where texts stand; right up to the first mistake."""
    inside, begun = False, b""  # in a text; the first half of an escape
    for plain in _pieces(json, size):
        piece = (begun + plain).replace(b"\\\\", b"")
        begun = _BACKSLASH if piece.endswith(_BACKSLASH) else b""
        piece = piece.removesuffix(_BACKSLASH).replace(b'\\"', b"")
        letters = np.frombuffer(piece, np.uint8)
        within = np.bitwise_xor.accumulate(letters == _QUOTE) ^ inside
        yield (letters * ~within).tobytes()
        if len(within):
            inside = bool(within[-1])
