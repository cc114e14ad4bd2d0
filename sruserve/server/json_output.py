"""Encode JSON. Long values are encoded in pieces, because the encoder blocks all other threads."""

from collections.abc import Iterator
from typing import Any

from pydantic_core import to_json

MAX_VALUES = 4096  # values that are encoded at once: about a millisecond
_CHARACTERS = 16  # of a text that take as long as one value
_NUMBERS = {float, int, bool, type(None)}


def json_bytes(value: object) -> bytes:
    """A value as JSON; NaN and infinity become null."""
    return to_json(value, inf_nan_mode="null")


def long_json(value: object, max_values: int = MAX_VALUES) -> bytes:
    """The same as `json_bytes`, in pieces of at most `max_values` values."""
    parts: list[bytes] = []
    _write(value, {}, parts, max_values)
    return b"".join(parts)


def _write(value: object, weights: dict[int, int], parts: list[bytes], max_values: int) -> None:
    if _weight(value, weights) <= max_values:
        parts.append(json_bytes(value))
    elif isinstance(value, dict):
        separator, items = b"{", list(value.items())
        for group in _groups([_weight(each, weights) for each in value.values()], max_values):
            parts.append(separator)
            if group.stop - group.start == 1:
                name, element = items[group.start]
                parts.append(json_bytes(name) + b":")
                _write(element, weights, parts, max_values)
            else:
                parts.append(json_bytes(dict(items[group]))[1:-1])
            separator = b","
        parts.append(b"}")
    elif isinstance(value, str):
        parts.append(b'"')
        long = max_values * _CHARACTERS
        pieces = (value[at : at + long] for at in range(0, len(value), long))
        parts += [json_bytes(piece)[1:-1] for piece in pieces]
        parts.append(b'"')
    else:
        assert isinstance(value, list)
        separator = b"["
        for group in _groups([_weight(each, weights) for each in value], max_values):
            parts.append(separator)
            if group.stop - group.start == 1:
                _write(value[group.start], weights, parts, max_values)
            else:
                parts.append(json_bytes(value[group])[1:-1])
            separator = b","
        parts.append(b"]")


def _groups(weights: list[int], max_values: int) -> Iterator[slice]:
    """Groups of neighbours that are encoded at once; a longer value is a group of its own."""
    begin = weight = 0
    for index, next_weight in enumerate(weights):
        if weight + next_weight > max_values and index > begin:
            yield slice(begin, index)
            begin, weight = index, 0
        weight += next_weight
    yield slice(begin, len(weights))


def _weight(value: object, weights: dict[int, int]) -> int:
    """The approximate number of values. A long text counts by its encoding time.

    weights: the weights of lists and dicts by their ids.
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
            for element in value.values() if isinstance(value, dict) else value:
                weight += _weight(element, weights)
        weights[id(value)] = weight
    return weight


def _is_of_numbers(values: list[Any]) -> bool:
    """Whether a list has only numbers, booleans and nulls; fast for long lists."""
    parts = (values[at : at + MAX_VALUES] for at in range(0, len(values), MAX_VALUES))
    return all({*map(type, part)} <= _NUMBERS for part in parts)
