"""Results of a server as plain values, and how two of them differ."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sruserve.check.errors import NoAnswer

Scalar = str | float | int | bool | None
Values = tuple[Scalar, ...]

ROUNDING = 1e-5  # relative to the larger number, or to 1


@dataclass(frozen=True)
class Result:
    """The parts of one answer, each a flat row of values; a text is a row of characters.

    per_step: parts that grow with the input, so that those of chunks follow each other. Of all
    other parts, the last chunk's are those of the whole.
    """

    parts: Mapping[str, Values]
    per_step: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Difference:
    """How a result differs from the expected one.

    largest: the largest absolute difference of two numbers.
    only_numbers: no text, label, integer or null differs. relative: `largest` at its own scale.
    where: the first difference, for a reader.
    """

    where: str
    largest: float
    relative: float
    only_numbers: bool

    def is_within(self, tolerance: float) -> bool:
        return tolerance > 0 and self.only_numbers and self.largest <= tolerance

    @property
    def is_rounding(self) -> bool:
        return self.only_numbers and self.relative <= ROUNDING


def flatten(value: Any) -> Values:
    """All values of nested JSON lists and objects in their order."""
    flat: list[Scalar] = []
    stack = [value]
    while stack:
        top = stack.pop()
        if isinstance(top, dict):
            stack.extend(reversed(top.values()))
        elif isinstance(top, list):
            stack.extend(reversed(top))
        else:
            flat.append(top)
    return tuple(flat)


def joined(results: Sequence[Result]) -> Result:
    """The result of a whole input from those of its chunks."""
    if not results:
        raise NoAnswer("the server returned no results")
    last = results[-1]
    parts = {
        name: sum((result.parts.get(name, ()) for result in results), ())
        if name in last.per_step
        else values
        for name, values in last.parts.items()
    }
    return Result(parts, last.per_step)


def compare(expected: Result, actual: Result) -> Difference | None:
    """The difference of two results, or None if they are equal bit for bit."""
    where, largest, relative, only_numbers = "", 0.0, 0.0, True
    for name in dict.fromkeys((*expected.parts, *actual.parts)):
        one, other = expected.parts.get(name, ()), actual.parts.get(name, ())
        for i in range(max(len(one), len(other))):
            a, b = _at(one, i), _at(other, i)
            if _same(a, b):
                continue
            if not where:
                place = f"{name}[{i}]" if max(len(one), len(other)) > 1 else name
                where = f"{place}: {_shown(one, i)} became {_shown(other, i)}"
            if _is_number(a) and _is_number(b):
                distance, scaled = _distance(a, b)
                largest, relative = max(largest, distance), max(relative, scaled)
            only_numbers = only_numbers and _are_floats(a, b)
    return Difference(where, largest, relative, only_numbers) if where else None


def _at(values: Values, i: int) -> Scalar:
    return values[i] if i < len(values) else _MISSING


_MISSING = "(nothing)"


def _same(one: Scalar, other: Scalar) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_floats(one: Scalar, other: Scalar) -> bool:
    """Whether both are numbers, and one of them no integer."""
    numbers = _is_number(one) and _is_number(other)
    return numbers and (isinstance(one, float) or isinstance(other, float))


def _distance(one: Any, other: Any) -> tuple[float, float]:
    """The absolute difference of two numbers, and the relative one."""
    try:
        distance = float(abs(one - other))
        scale = max(1.0, abs(float(one)), abs(float(other)))
    except OverflowError:  # an integer beyond all floats
        return math.inf, math.inf
    return (distance, distance / scale) if math.isfinite(distance) else (math.inf, math.inf)


def _shown(values: Values, i: int) -> str:
    """A value for a reader; of a text, some characters from the difference on."""
    value = _at(values, i)
    if isinstance(value, str) and len(value) == 1:
        row = values[i : i + 20]
        return repr("".join(part for part in row if isinstance(part, str)))
    return repr(value) if not isinstance(value, str) or value != _MISSING else value
