"""Sizes of an input that notice what a module compares them with, such as a most length.

A module that cuts inputs of more than 1,000 steps computes the same as one that cuts none as long
as its inputs are short. So a size is an int that remembers where a comparison would turn out
otherwise, and both are compared for inputs of that length.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Size, Tensor

from sruserve.tracing.source import Place, running_line

_NO_LIMIT = (1 << 31) - 1  # steps: such as sys.maxsize, for none

Limits = Mapping[int, Place | None]
"""Lengths of an axis from which on a module may compute something else, and where it says so."""


class Watch:
    """The sizes of one run's input, and what they were compared with.

    shape: of the input.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self._axes = {size: axis for axis, size in enumerate(shape[:2])}
        self._limits: tuple[dict[int, Place | None], ...] = ({}, {})
        self.pausing = False

    def limits(self, axis: int) -> Limits:
        """Return the limits of an axis of the input."""
        return self._limits[axis]

    def seen(self, value: Any) -> Any:
        """Return sizes of a tensor with a `Length` in place of each size of the input."""
        if isinstance(value, Size):
            return Size(map(self.seen, value))
        if type(value) is int and value in self._axes:
            return Length(value, self, value, lambda length: length)
        return value

    def compare(self, size: int, outcome: Callable[[int], bool]) -> bool:
        """Return a comparison's outcome at a size, and note where it turns out otherwise."""
        now = outcome(size)

        def differs(length: int) -> bool:
            try:
                return outcome(length) != now
            except ArithmeticError:
                return True

        low = high = size
        while not self.pausing and high < _NO_LIMIT:
            low, high = high, min(2 * high, _NO_LIMIT)
            if not differs(high):
                continue
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if differs(middle) else (middle, high)
            if high < _NO_LIMIT:
                self._limits[self._axes[size]].setdefault(high, running_line())
            break
        return now


class Length(int):
    """A size of the input, or a number computed from it.

    size: the input's. of: computes the number from the size.
    """

    _watch: Watch
    _size: int
    _of: Callable[[int], Any]

    def __new__(cls, value: int, watch: Watch, size: int, of: Callable[[int], Any]) -> "Length":
        self = super().__new__(cls, value)
        self._watch, self._size, self._of = watch, size, of
        return self

    def _computed(self, function: Callable[[Any, Any], Any], other: Any, swap: bool) -> Any:
        if isinstance(other, Tensor):
            return NotImplemented
        first, second = (other, self) if swap else (self, other)
        value = function(_plain(first), _plain(second))
        if type(value) is not int:
            return value
        a, b = _of(first), _of(second)
        return Length(value, self._watch, self._size, lambda size: function(a(size), b(size)))

    def _compared(self, function: Callable[[Any, Any], bool], other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        a, b = self._of, _of(other)
        return self._watch.compare(self._size, lambda size: function(a(size), b(size)))

    def __eq__(self, other: object) -> Any:
        """Compare two numbers; the input may have just one such length."""
        if self._watch.pausing or not isinstance(other, int):
            return int.__eq__(self, other) if isinstance(other, int) else NotImplemented
        # The first length that is not below the number is the one that may equal it.
        self._compared(operator.lt, other)
        return int(self) == int(other)

    def __ne__(self, other: object) -> Any:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __hash__(self) -> int:
        return int.__hash__(self)

    def __reduce__(self) -> Any:
        return int, (int(self),)  # what a module keeps of it is a plain number


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, Length) else value


def _of(value: Any) -> Callable[[int], Any]:
    return value._of if isinstance(value, Length) else lambda _: value


def _add_operators() -> None:
    for name in ("add", "sub", "mul", "floordiv", "mod", "truediv"):
        function = getattr(operator, name)

        def forward(self: Length, other: Any, function: Any = function) -> Any:
            return self._computed(function, other, swap=False)

        def backward(self: Length, other: Any, function: Any = function) -> Any:
            return self._computed(function, other, swap=True)

        setattr(Length, f"__{name}__", forward)
        setattr(Length, f"__r{name}__", backward)
    for name in ("lt", "le", "gt", "ge"):
        function = getattr(operator, name)

        def compare(self: Length, other: Any, function: Any = function) -> Any:
            return self._compared(function, other)

        setattr(Length, f"__{name}__", compare)


_add_operators()
