"""The numbers in a JSON schema, which the library reads as 64-bit floats and integers."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from math import inf, lcm
from typing import Any

from sruserve.server.errors import InvalidRequest

_EXACT = 1 << 53  # up to here, floats hold every integer
_LEAST, _LARGEST = -(1 << 63), (1 << 63) - 1
# What the library adds to a bound, in floats, for the first integer beside it.
_BOUNDS = {"minimum": 0, "exclusiveMinimum": 1, "maximum": 0, "exclusiveMaximum": -1}
_MAX_SHOWN_DIGITS = 40
_MAX_MULTIPLE = 10_000


def check_numbers(members: Iterable[tuple[str, Any]]) -> None:
    """Refuse members of a schema's objects with numbers that the library would not keep to."""
    divisors = []
    for key, value in members:
        if key in ("const", "enum"):
            for number in _integers(value):
                if abs(number) > _EXACT and (number > _LARGEST or not _is_exact(number)):
                    raise _inexact(key, number)
        elif type(value) not in (int, float):
            continue
        elif key == "multipleOf":
            divisors.append(value)
        elif key in _BOUNDS and not _is_kept(key, value):
            raise _inexact(key, value)
    _check_divisors(divisors)


def _is_exact(number: int) -> bool:
    return _followed(number) == number > _LEAST


def _is_kept(key: str, bound: float) -> bool:
    """Whether all numbers that the library writes are within a bound."""
    inclusive, first = _followed(bound), _followed(bound, _BOUNDS[key])
    if inclusive <= _LEAST:  # the library has no absolute value of it
        return False
    if key in ("minimum", "exclusiveMinimum"):
        return inclusive >= bound and (key == "minimum" or first > bound)
    return inclusive <= bound and (key == "maximum" or first < bound)


def _followed(value: float, step: int = 0) -> int | float:
    """A number as the library reads it, or the next integer after or before it."""
    try:
        number = float(value) + step
    except OverflowError:
        number = inf if value > 0 else -inf
    return max(_LEAST, min(_LARGEST, number))


def _integers(value: object) -> Iterator[int]:
    """All integers in a JSON value."""
    remaining = [value]
    while remaining:
        item = remaining.pop()
        if type(item) is int:
            yield item
        elif isinstance(item, dict):
            remaining += item.values()
        elif isinstance(item, list):
            remaining += item


def _inexact(key: str, value: float) -> InvalidRequest:
    shown = str(value) if abs(value) < 10**_MAX_SHOWN_DIGITS else "a larger number"
    return InvalidRequest(
        f"the schema cannot be followed exactly: '{key}' has {shown}; use integers from "
        f"{-_EXACT} to {_EXACT}, or strings"
    )


def _check_divisors(values: list[int | float]) -> None:
    """Refuse divisors with a large common multiple: the lexer needs that many states."""
    exact = [Fraction(str(value)) for value in values]
    scale = lcm(*(value.denominator for value in exact))
    if lcm(*(int(value * scale) for value in exact)) > _MAX_MULTIPLE:
        raise InvalidRequest(
            "the least common multiple of all 'multipleOf' values, in units of their last digit, "
            f"may be {_MAX_MULTIPLE} at most; simplify them"
        )
