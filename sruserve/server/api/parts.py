"""Of how many parts a client's JSON may be: reading each takes the event loop's time."""

import numpy as np

from sruserve.server.errors import InputTooLong

MOST_PARTS = 1 << 16  # of JSON, or elements of gRPC's `contents`: a microsecond or two each
BYTES_FOR_A_VALUE = 8  # of the longest body, at a few tenths of one
_QUOTE = ord('"')


def check_parts(json: bytes, longest: int) -> None:
    """Raise `InputTooLong` if reading `json` would take long; `longest`: bytes of a body."""
    most_values = MOST_PARTS + longest // BYTES_FOR_A_VALUE
    parts, values = _counted(json)
    if parts <= MOST_PARTS and values <= most_values:
        return
    parts, values = _counted(_without_texts(json))
    if parts > MOST_PARTS:
        raise InputTooLong(
            f"the body holds {parts} lists, objects and fields and may hold {MOST_PARTS}: send "
            "fewer inputs or steps at once, the rest with `state`"
        )
    if values > most_values:
        raise InputTooLong(
            f"the body holds {values} values and may hold {most_values}: send fewer at once, or "
            "ask the operator to raise SRUSERVE_MAX_BODY_BYTES"
        )


def _counted(json: bytes) -> tuple[int, int]:
    """The most parts, and the most values, that there can be."""
    return sum(map(json.count, (b"[", b"{", b":"))), json.count(b",") + 1


def _without_texts(json: bytes) -> bytes:
    """Zeros where texts stand; right up to the first mistake."""
    if b"\\" in json:
        json = json.replace(b"\\\\", b"").replace(b'\\"', b"")
    letters = np.frombuffer(json, np.uint8)
    inside = np.bitwise_xor.accumulate(letters == _QUOTE)
    return (letters * ~inside).tobytes()
