"""How many parts a client's JSON may have: the parser stops all other threads until it is through.

The bounds keep that time below about 50 ms on a core of 2.5 GHz. Texts do not count.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from sruserve.server.errors import InputTooLong

MOST_PARTS = 1 << 15  # lists, objects and fields: a microsecond or less each
MOST_VALUES = 1 << 17  # a few tenths of one
MOST_DIGITS = 3 << 20  # integers of thousands of digits take the square of their number
_PIECE = 256 << 10  # bytes that are looked at in one go
_QUOTE, _BACKSLASH = ord('"'), b"\\"
_DIGITS = b"0123456789"


def check_parts(json: bytes) -> None:
    """Raise `InputTooLong` if parsing `json` would take long."""
    many = len(json) > MOST_DIGITS
    parts, values, digits = _counted(_pieces(json), many)
    if parts <= MOST_PARTS and values <= MOST_VALUES and digits <= MOST_DIGITS:
        return
    parts, values, digits = _counted(_without_texts(json), many)
    if parts > MOST_PARTS:
        raise InputTooLong(
            f"the body holds {parts} lists, objects and fields and may hold {MOST_PARTS}: send "
            "fewer inputs or steps at once, the rest with `state`, or binary tensors to /v2"
        )
    if values > MOST_VALUES:
        raise InputTooLong(
            f"the body holds {values} values and may hold {MOST_VALUES}: send fewer at once, the "
            "rest with `state`, or binary tensors to /v2"
        )
    if digits > MOST_DIGITS:
        raise InputTooLong(
            f"the numbers of the body have {digits} digits and may have {MOST_DIGITS}: send fewer "
            "digits"
        )


def _pieces(json: bytes, size: int = _PIECE) -> Iterator[bytes]:
    for at in range(0, len(json), size):
        yield json[at : at + size]


def _counted(pieces: Iterable[bytes], count_digits: bool) -> tuple[int, int, int]:
    """The most parts, values and digits that there can be."""
    parts, values, digits = 0, 1, 0
    for piece in pieces:
        parts += sum(map(piece.count, (b"[", b"{", b":")))
        values += piece.count(b",")
        if count_digits:
            digits += len(piece) - len(piece.translate(None, _DIGITS))
    return parts, values, digits


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
