"""The table of operations that a model folder can express, and what they get."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sruserve.tracing.errors import Unserved
from sruserve.tracing.graph import Shape, Sizes
from sruserve.tracing.recorder import Operation
from sruserve.tracing.values import Placed, Rows, States, Value, Weighted, Weights


@dataclass(frozen=True, slots=True)
class Site:
    """One operation of the graph: what handlers know besides its arguments.

    shapes: those of its results, with the sizes' names in place of varying numbers.
    """

    operation: Operation
    sizes: Sizes
    shapes: Sequence[tuple[object, ...]]

    def named(self, shape: Shape) -> tuple[object, ...]:
        return tuple(map(self.sizes.name, shape))


Result = Value | Sequence[Value]
Handler = Callable[..., Result]
HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register the handler of functions of torch, by their names.

    A handler gets the `Site`, then the function's own arguments, with a `Value` in place of each
    tensor. It returns the meaning of the result, or of each tensor in it; or raises `Unserved`.
    """

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def rows(value: Any) -> Rows:
    """Return the argument if it is rows, or raise `Unserved`."""
    if isinstance(value, Rows):
        return value
    raise Unserved(f"reads {describe(value)}")


def placed(value: Any) -> Placed:
    """Return the argument if its axes are known, or raise `Unserved`."""
    if isinstance(value, Placed):
        return value
    raise Unserved(f"reads {describe(value)}")


def describe(value: Any) -> str:
    """Return what a value is, for messages."""
    if isinstance(value, States):
        return "end states of several layers or directions at once"
    if isinstance(value, Weights | Weighted):
        return "weights of steps"
    names = {"Ids": "the ids themselves", "Constant": "a constant", "Rows": "a computed tensor"}
    return names.get(type(value).__name__, "something that cannot be served")


def axis_of(value: Placed, dim: Any) -> str:
    """Return the name of a dimension."""
    return value.axes[position(value, dim)]


def position(value: Placed, dim: Any) -> int:
    """Return a dimension as a number from 0."""
    if not isinstance(dim, int) or not -len(value.axes) <= dim < len(value.axes):
        raise Unserved("has a dimension that is not a plain number")
    return dim % len(value.axes)
