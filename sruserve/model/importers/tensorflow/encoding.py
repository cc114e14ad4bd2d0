"""Varints and the fields of protobuf messages, from bytes that may be anything."""

from collections.abc import Iterator

Field = int | bytes


class Damaged(Exception):
    """Bytes that are not what they must be; the message completes "the file …"."""


def varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the number at a place, below 2**64, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            break
        byte, place = data[place], place + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, place
    raise Damaged("ends inside a number, or has one of more than 64 bits")


def fields(data: bytes) -> Iterator[tuple[int, Field]]:
    """Yield number and value of each field: an int, or the bytes of a text or message."""
    place = 0
    while place < len(data):
        key, place = varint(data, place)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, place = varint(data, place)
            yield number, value
            continue
        if kind == 2:
            size, place = varint(data, place)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise Damaged(f"has a field of the unknown kind {kind}")
        if size > len(data) - place:
            raise Damaged("ends inside a field")
        piece, place = data[place : place + size], place + size
        yield number, piece if kind == 2 else int.from_bytes(piece, "little")


def whole(value: Field) -> int:
    """Return a field that must be a number from 0 to 2**63 - 1."""
    if not isinstance(value, int) or value >> 63:
        raise Damaged("has a field of another type, or a negative size")
    return value


def message(value: Field) -> bytes:
    """Return a field that must be a message or text."""
    if not isinstance(value, bytes):
        raise Damaged("has a number where a message must be")
    return value
