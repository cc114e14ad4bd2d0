"""What a tensor of a graph is, without computing it: constants, rows of steps, end states."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from sruserve.model.importers.wiring.network import End
from sruserve.model.importers.wiring.steps import Array, Recurrent, Rows, Step, pool

Label = Literal["batch", "time", "direction", "feature"]
Part = tuple[Label, int]
"""A dimension of the network, and its size."""

Axis = tuple[Part, ...]
"""An axis of a tensor: some dimensions as one, the last varying fastest; none for a size of 1."""


# What to do about a node that is refused.
CHANGE = "change this part of the network and export it again (docs/models.md lists what is served)"
FIXED = "export the network with a constant there"
FOLDED = "export the network with its constants computed (constant folding)"
INVALID = "the graph is not valid: check it by onnx.checker, and export the network again"
ANY_LENGTH = "export the network so that its numbers do not depend on the input's length"


class Refused(Exception):
    """A node that cannot be served."""

    def __init__(self, why: str, advice: str = CHANGE) -> None:
        """why: a clause after the node's name. advice: what to do."""
        super().__init__(f"{why}; {advice}")


@dataclass(frozen=True, eq=False)
class Const:
    """Known numbers.

    sized: they depend on the input's sizes, which stand for those of any input. So they may only
        be used as a shape.
    """

    array: Array
    sized: bool = False


@dataclass(frozen=True, eq=False)
class Flow:
    """What a chain of steps computes; ids if there is no axis of features and no step."""

    steps: tuple[Step, ...]
    axes: tuple[Axis, ...]

    @property
    def features(self) -> int:
        """The number of the axis of features; raises `Refused` without one."""
        for number, axis in enumerate(self.axes):
            if len(axis) == 1 and axis[0][0] == "feature":
                return number
        raise Refused("needs an axis of features alone")

    @property
    def width(self) -> int:
        return self.axes[self.features][0][1]

    def then(self, *steps: Step, width: int | None = None) -> "Flow":
        """Return the result of more steps on its rows; raises `Refused` without rows.

        width: of the new rows; None keeps it.
        """
        if any(label == "direction" for axis in self.axes for label, _ in axis):
            raise Refused(
                "reads the two directions apart", "join them first, and export the network again"
            )
        axes = list(self.axes)
        axes[self.features] = (("feature", width or self.width),)
        return Flow((*self.steps, *steps), tuple(axes))


@dataclass(frozen=True, eq=False)
class States:
    """Parts of end states, side by side along an axis of directions, or joined as features.

    parts: for each, the steps up to its layer, and h or c of a direction.
    """

    parts: tuple[tuple[tuple[Step, ...], Literal["h", "c"], int], ...]
    axes: tuple[Axis, ...]


Value = Const | Flow | States


def sizes(axes: Sequence[Axis]) -> tuple[int, ...]:
    """Return the size of each axis."""
    return tuple(prod(size for _, size in axis) for axis in axes)


def with_axes(value: Flow | States, axes: Sequence[Axis]) -> Flow | States:
    """Return the value with other axes."""
    return replace(value, axes=tuple(axes))


def axis_of(value: Flow | States, label: Label) -> int | None:
    """Return the number of the axis that has a dimension; None without it."""
    for number, axis in enumerate(value.axes):
        if any(name == label for name, _ in axis):
            return number
    return None


def rows_of(value: Value, name: str) -> Flow:
    """Return rows, also those of end states; raises `Refused` for anything else."""
    if isinstance(value, Const):
        raise Refused("reads only constants")
    if isinstance(value, Flow):
        return value
    if axis_of(value, "direction") is not None:
        raise Refused(
            "reads end states side by side",
            "join or choose them first, and export the network again",
        )
    steps = max((steps for steps, _, _ in value.parts), key=len)
    ends = []
    for own, kind, direction in value.parts:
        if any(a is not b for a, b in zip(own, steps, strict=False)):
            raise Refused("joins end states of two branches")
        layers = [step for step in own if isinstance(step, Recurrent)]
        ends.append(End(len(layers) - 1, kind, direction, layers[-1].hidden))
    layers = [step for step in steps if isinstance(step, Recurrent)]
    last = End(len(layers) - 1, "h", 0, layers[-1].hidden)
    if ends == [last] and len(layers[-1].directions) == 1:
        return Flow((*steps, pool(name, "last")), value.axes)
    return Flow((*steps, pool(name, "final", tuple(ends))), value.axes)


def added_rows(longer: Flow, shorter: Flow) -> list[Rows] | None:
    """Return the row layers by which one chain continues another; None if it does not."""
    count = len(shorter.steps)
    common = zip(longer.steps, shorter.steps, strict=False)
    if len(longer.steps) < count or any(a is not b for a, b in common):
        return None
    rows = longer.steps[count:]
    return (
        [r for r in rows if isinstance(r, Rows)] if all(isinstance(r, Rows) for r in rows) else None
    )


def reshaped(axes: Sequence[Axis], shape: Sequence[int]) -> tuple[Axis, ...]:
    """Return the axes of a tensor in a new shape; raises `Refused` if that tears one apart."""
    parts = [part for axis in axes for part in axis]
    result: list[Axis] = []
    for number, size in enumerate(shape):
        own: list[Part] = []
        while prod(n for _, n in own) < size and parts:
            own.append(parts.pop(0))
        if prod(n for _, n in own) != size:
            raise Refused(f"reshapes {list(sizes(axes))} to {list(shape)}, which mixes dimensions")
        if size == 1 and not own and parts and parts[0][1] == 1:
            own.append(parts.pop(0))  # an input of size 1: its place tells what it is
        if number == len(shape) - 1:
            own += parts
        result.append(_joined(own))
    return tuple(result)


def _joined(parts: Sequence[Part]) -> Axis:
    """Return one axis; directions right before features become wider features."""
    joined: list[Part] = []
    for label, size in parts:
        if label == "feature" and joined and joined[-1][0] in ("direction", "feature"):
            size *= joined.pop()[1]
        joined.append((label, size))
    return tuple(joined)
