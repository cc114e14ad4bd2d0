"""Limit the fields and numbers of a protobuf message, because parsing blocks the interpreter."""

from functools import cache
from typing import Any

from sruserve.server.errors import InputTooLong
from sruserve.server.json_limits import MAX_JSON_CONTAINERS

MAX_FIELDS = MAX_JSON_CONTAINERS + (
    1 << 12
)  # elements in `contents`, and names and shapes beside them
_FEW_FIELDS = 1 << 10  # parsing them costs less than an answer
_BYTES_PER_COST = 2  # those of the shortest field, in units of `http/parse_turns.py`
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5  # wire types
_LONGEST_VARINT = 10  # bytes

# The parts of a message by field number: nested messages, or None for numbers.
Parts = dict[int, "Parts | None"]
_WITHOUT: Parts = {}


def check_fields(kind: Any, data: bytes) -> None:
    """Raise `InputTooLong` if `data`, as a message of a kind, has more than `MAX_FIELDS`.

    It stops at this limit, and ignores malformed messages, which the parser reports.
    """
    try:
        fields = _count(_parts(kind.DESCRIPTOR), data, MAX_FIELDS)
    except IndexError:
        return
    if fields > MAX_FIELDS:
        raise InputTooLong(
            f"the message has more than {MAX_FIELDS} fields and numbers: send tensors as "
            "raw_input_contents, or less at once"
        )


def parsing_cost(kind: Any, data: bytes) -> int:
    """What parsing a message of a kind costs at most; 0: less than an answer."""
    try:
        fields = _count(_parts(kind.DESCRIPTOR), data, _FEW_FIELDS)
    except IndexError:
        return 0  # few fields precede the error
    return len(data) // _BYTES_PER_COST if fields > _FEW_FIELDS else 0


def _count(parts: Parts, data: bytes, limit: int) -> int:
    """The fields of a message, with a lower bound of its numbers; stops beyond the limit.

    Raises `IndexError` if the message ends within a field.
    """
    fields, unread = 0, [(parts, 0, len(data))]
    while unread and fields <= limit:
        parts, at, end = unread.pop()
        while at < end and fields <= limit:
            fields += 1
            if (tag := data[at]) < 128:  # nearly always; a function call would be slow here
                at += 1
            else:
                tag, at = _varint(data, at)
            wire_type = tag & 7
            if wire_type == _DELIMITED:
                if (size := data[at]) < 128:
                    at += 1
                else:
                    size, at = _varint(data, at)
                inner = parts.get(tag >> 3, _WITHOUT)
                if inner is None:
                    fields += size // _LONGEST_VARINT
                elif inner and size:
                    unread.append((inner, at, min(at + size, end)))
                at += size
            elif wire_type == _VARINT:
                _, at = _varint(data, at)
            elif wire_type == _FIXED32:
                at += 4
            elif wire_type == _FIXED64:
                at += 8
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at a place, seven bits in each byte, and the place after it."""
    value = 0
    for shift in range(0, 7 * _LONGEST_VARINT, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise IndexError


@cache
def _parts(message: Any) -> Parts:
    parts: Parts = {}
    for field in message.fields:
        if field.message_type is not None:
            parts[field.number] = _parts(field.message_type)
        elif field.cpp_type != field.CPPTYPE_STRING:  # of bytes, too
            parts[field.number] = None
    return parts
