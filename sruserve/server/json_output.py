"""JSON, in pieces where it is long: the encoder stops all other threads until it is through."""

from collections.abc import Iterator
from typing import Any

from pydantic_core import to_json

_MOST = 4096  # values that are encoded in one go: about a millisecond
_CHARACTERS = 16  # of a text, which take about as long as a value
_NUMBERS = {float, int, bool, type(None)}


def json_bytes(value: object) -> bytes:
    """JSON as every parser reads it: NaN and infinity become null."""
    return to_json(value, inf_nan_mode="null")


def long_json(value: object) -> bytes:
    """What `json_bytes` gives."""
    parts: list[bytes] = []
    _write(value, {}, parts)
    return b"".join(parts)


def _write(value: object, weights: dict[int, int], parts: list[bytes]) -> None:
    if _weight(value, weights) <= _MOST:
        parts.append(json_bytes(value))
    elif isinstance(value, dict):
        before, items = b"{", list(value.items())
        for some in _groups([_weight(each, weights) for each in value.values()]):
            parts.append(before)
            if some.stop - some.start == 1:
                name, each = items[some.start]
                parts.append(json_bytes(name) + b":")
                _write(each, weights, parts)
            else:
                parts.append(json_bytes(dict(items[some]))[1:-1])
            before = b","
        parts.append(b"}")
    elif isinstance(value, str):
        parts.append(b'"')
        long = _MOST * _CHARACTERS
        pieces = (value[at : at + long] for at in range(0, len(value), long))
        parts += [json_bytes(piece)[1:-1] for piece in pieces]
        parts.append(b'"')
    else:
        assert isinstance(value, list)
        before = b"["
        for some in _groups([_weight(each, weights) for each in value]):
            parts.append(before)
            if some.stop - some.start == 1:
                _write(value[some.start], weights, parts)
            else:
                parts.append(json_bytes(value[some])[1:-1])
            before = b","
        parts.append(b"]")


def _groups(weights: list[int]) -> Iterator[slice]:
    """Neighbours that are encoded in one go, or one that is too long for it."""
    begin = weight = 0
    for index, more in enumerate(weights):
        if weight + more > _MOST and index > begin:
            yield slice(begin, index)
            begin, weight = index, 0
        weight += more
    yield slice(begin, len(weights))


def _weight(value: object, weights: dict[int, int]) -> int:
    """About how many values there are. A long text counts as those that take as much time.

    weights: of the lists and dicts that were weighed already, by their ids.
    """
    if isinstance(value, str):
        return 1 + len(value) // _CHARACTERS
    if not isinstance(value, dict | list):
        return 1
    weight = weights.get(id(value))
    if weight is None:
        if isinstance(value, list) and _is_of_numbers(value):
            weight = 1 + len(value)
        else:
            weight = 1
            for each in value.values() if isinstance(value, dict) else value:
                weight += _weight(each, weights)
        weights[id(value)] = weight
    return weight


def _is_of_numbers(values: list[Any]) -> bool:
    """Whether nothing in a list is longer than a number; a look at each would take long."""
    parts = (values[at : at + _MOST] for at in range(0, len(values), _MOST))
    return all({*map(type, part)} <= _NUMBERS for part in parts)
