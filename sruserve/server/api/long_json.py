"""JSON of long replies in pieces: the encoder stops all other threads until it is through."""

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from sruserve.server.api.call import json_bytes

_MOST = 4096  # values that are encoded in one go: about a millisecond
_CHARACTERS = 16  # of a text, which take about as long as a value


def long_json(value: object) -> bytes:
    """What `json_bytes` gives."""
    return b"".join(_pieces(value))


def listed(array: NDArray[Any]) -> list[Any]:
    """What `array.tolist()` gives."""
    rows = max(1, _MOST * len(array) // max(1, array.size))
    return [row for at in range(0, len(array), rows) for row in array[at : at + rows].tolist()]


def _pieces(value: object) -> Iterator[bytes]:
    if _weight(value) <= _MOST:
        yield json_bytes(value)
    elif isinstance(value, dict):
        before = b"{"
        for name, each in value.items():
            yield before + json_bytes(name) + b":"
            yield from _pieces(each)
            before = b","
        yield b"}"
    elif isinstance(value, str):
        yield b'"'
        for at in range(0, len(value), _MOST * _CHARACTERS):
            yield json_bytes(value[at : at + _MOST * _CHARACTERS])[1:-1]
        yield b'"'
    else:
        assert isinstance(value, list)
        yield b"["
        for number, group in enumerate(_groups(value)):
            if number:
                yield b","
            if len(group) == 1:
                yield from _pieces(group[0])
            else:
                yield json_bytes(group)[1:-1]
        yield b"]"


def _groups(values: list[Any]) -> Iterator[list[Any]]:
    """Neighbours that are encoded in one go, or one that is too long for it."""
    begin = weight = 0
    for index, each in enumerate(values):
        more = _weight(each)
        if weight + more > _MOST and index > begin:
            yield values[begin:index]
            begin, weight = index, 0
        weight += more
    yield values[begin:]


def _weight(value: object) -> int:
    """About how many values there are; a list that begins with a number holds nothing longer.

    A long text counts as the values that take as much time.
    """
    if isinstance(value, dict):
        return 1 + sum(map(_weight, value.values()))
    if isinstance(value, str):
        return 1 + len(value) // _CHARACTERS
    if not isinstance(value, list) or not value:
        return 1
    if isinstance(value[0], float | int):
        return len(value)
    return sum(map(_weight, value))
