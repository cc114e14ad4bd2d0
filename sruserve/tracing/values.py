"""What a tensor of a traced module means: the inputs, rows, end states, weights of steps.

Axes are named: "B" the batch, "T" the steps, "F" the features, "1" one entry, "BT" and "TB" both in
one; of end states "S" the entries, or "L" the layers and "D" the directions.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sruserve.model.importers.wiring.layers import Layer, Layers, Softmax, width_after
from sruserve.model.importers.wiring.network import End, Pooling
from sruserve.tracing.errors import Unserved
from sruserve.tracing.source import Place
from sruserve.tracing.stages import Stage

Axes = tuple[str, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Features:
    """Rows of the input are features."""

    width: int


@dataclass(frozen=True, eq=False, slots=True)
class Lookup:
    """Rows of the input are those of a table, (ids, width)."""

    table: Tensor

    @property
    def width(self) -> int:
        return self.table.shape[1]


@dataclass(frozen=True, eq=False, slots=True)
class Outputs:
    """Rows are the outputs of recurrent modules, one after another, over `source`."""

    stages: tuple[Stage, ...]
    source: "Rows"

    @property
    def width(self) -> int:
        return self.stages[-1].output_size

    @property
    def depth(self) -> int:
        """Number of layers of all modules."""
        return sum(stage.layers for stage in self.stages)

    @property
    def bidirectional(self) -> bool:
        return self.stages[-1].directions > 1


@dataclass(frozen=True, eq=False, slots=True)
class Pooled:
    """One row for a sequence: those of several poolings, side by side.

    Besides the kinds of a model folder, one alone may be a "sum".
    """

    outputs: Outputs
    poolings: tuple[Pooling, ...]

    @property
    def kind(self) -> str:
        """The kind of the only pooling; "several" if there are more."""
        return self.poolings[0].kind if len(self.poolings) == 1 else "several"

    @property
    def width(self) -> int:
        return sum(
            sum(end.width for end in pooling.ends) or self.outputs.width
            for pooling in self.poolings
        )


def pooled(
    outputs: Outputs, kind: str, ends: tuple[End, ...] = (), attention: Layers = ()
) -> Pooled:
    """Return the row of one pooling."""
    return Pooled(outputs, (Pooling(kind, ends, attention),))


Origin = Features | Lookup | Outputs | Pooled


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of `width` features: `origin`, then `layers`. Without an "F" the width is 1."""

    origin: Origin
    axes: Axes
    layers: Layers = ()

    @property
    def width(self) -> int:
        return width_after(self.layers, self.origin.width)

    def then(self, layer: Layer) -> "Rows":
        """Return these rows after another layer."""
        if self.layers and isinstance(self.layers[-1], Softmax):
            raise Unserved("follows a softmax over the outputs, which must be the last operation")
        if isinstance(self.origin, Pooled) and self.origin.kind == "sum":
            raise Unserved("follows a sum over the steps; divide the sum by their number first")
        return replace(self, layers=(*self.layers, layer))


@dataclass(frozen=True, eq=False)
class Ids:
    """The module's input, whole numbers."""

    axes: Axes


@dataclass(frozen=True, eq=False)
class Weights:
    """A softmax over the steps of one score for each; rows of width 1, before the softmax."""

    scores: Rows
    axes: Axes


@dataclass(frozen=True, eq=False)
class Weighted:
    """Outputs times the steps' weights, not yet summed."""

    outputs: Rows
    weights: Weights
    axes: Axes


@dataclass(frozen=True, eq=False)
class States:
    """End states, with an entry for each of `ends` along "S", or along "L" and "D"."""

    outputs: Outputs
    ends: tuple[End, ...]
    axes: Axes
    directions: int = 1

    @property
    def width(self) -> int:
        return self.ends[0].width


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that does not depend on the input, of both runs."""

    first: Tensor
    second: Tensor

    def both(self) -> Tensor:
        """Return its numbers; raise `Unserved` if they differ between the runs."""
        if self.first.shape == self.second.shape and torch.equal(self.first, self.second):
            return self.first.detach()
        raise Unserved("uses numbers that are not the same in every run or for every length")


@dataclass(frozen=True, eq=False)
class Unknown:
    """A tensor that a model folder cannot express, and why."""

    reason: str
    place: Place | None = field(default=None)


Value = Rows | Ids | Weights | Weighted | States | Constant | Unknown
Placed = Rows | Ids | Weights | Weighted | States


def size_of(value: Placed, axis: str) -> object:
    """Return the length of an axis: a number, or the axis' own name for "B", "T" and both."""
    if axis == "1":
        return 1
    if axis in ("B", "T"):
        return axis
    if axis in ("BT", "TB"):
        return "BT"
    if isinstance(value, States):
        return states_size(value, axis)
    if isinstance(value, Weighted):
        return value.outputs.width
    return value.width if isinstance(value, Rows) else 1


def states_size(value: States, axis: str) -> int:
    """Return the length of an axis "F", "S", "L" or "D"."""
    if axis == "F":
        return value.width
    if axis == "D":
        return value.directions
    return len(value.ends) // (value.directions if "D" in value.axes else 1)


def settled(value: Value) -> Value:
    """Turn end states without an axis of entries into rows."""
    if isinstance(value, States) and not {"S", "L", "D"} & set(value.axes):
        return Rows(pooled(value.outputs, "final", value.ends), value.axes)
    return value
