"""Operations that only move axes: transpositions, squeezes and views."""

from dataclasses import replace
from typing import Any

from sruserve.model.importers.wiring.layers import Select, ranges_of
from sruserve.tracing.errors import Unserved
from sruserve.tracing.table import Site, handles, placed, position
from sruserve.tracing.values import Axes, Placed, Rows, States, Value, Weights, settled, size_of


def moved(value: Placed, axes: Axes) -> Placed:
    """Return a value with its axes in another order."""
    return replace(value, axes=axes)


@handles("transpose", "swapaxes", "swapdims")
def transpose(site: Site, x: Value, dim0: int, dim1: int) -> Value:
    del site
    x = placed(x)
    axes = list(x.axes)
    a, b = position(x, dim0), position(x, dim1)
    axes[a], axes[b] = axes[b], axes[a]
    return moved(x, tuple(axes))


@handles("t", "T", "mT")
def transposed(site: Site, x: Value) -> Value:
    x = placed(x)
    if len(x.axes) == 2 or site.operation.name == "T":
        return moved(x, x.axes[::-1])
    return moved(x, (*x.axes[:-2], x.axes[-1], x.axes[-2]))


@handles("permute")
def permute(site: Site, x: Value, *dims: Any) -> Value:
    del site
    x = placed(x)
    order = dims[0] if len(dims) == 1 and isinstance(dims[0], tuple) else dims
    return moved(x, tuple(x.axes[position(x, dim)] for dim in order))


@handles("movedim", "moveaxis")
def movedim(site: Site, x: Value, source: int, destination: int) -> Value:
    del site
    x = placed(x)
    a, b = position(x, source), position(x, destination)
    axes = list(x.axes)
    axes.insert(b, axes.pop(a))
    return moved(x, tuple(axes))


@handles("unsqueeze")
def unsqueeze(site: Site, x: Value, dim: int) -> Value:
    del site
    x = placed(x)
    place = dim % (len(x.axes) + 1)
    features = isinstance(x, Rows) and place == len(x.axes) and "F" not in x.axes
    return moved(x, (*x.axes[:place], "F" if features else "1", *x.axes[place:]))


@handles("squeeze")
def squeeze(site: Site, x: Value, dim: Any = None) -> Value:
    """Drop axes of one entry; one feature of rows, and one entry of end states, too."""
    del site
    x = placed(x)
    if dim is None:
        dims = set(range(len(x.axes)))
    else:
        dims = {position(x, each) for each in (dim if isinstance(dim, tuple) else (dim,))}
    kept = [axis for i, axis in enumerate(x.axes) if i not in dims or size_of(x, axis) != 1]
    return settled(moved(x, tuple(kept)))


@handles("reshape", "view", "flatten", "unflatten", "view_as", "reshape_as", "ravel")
def reshape(site: Site, x: Value, *_: Any, **__: Any) -> Value:
    """Group axes anew; the recorded shape of the result says how."""
    return regrouped(placed(x), site.shapes[0])


@handles("expand", "expand_as", "broadcast_to")
def expand(site: Site, x: Value, *_: Any, **__: Any) -> Value:
    x = placed(x)
    if isinstance(x, Weights):  # they are only multiplied, which repeats them by itself
        return x
    if len(site.shapes[0]) != len(x.axes):
        raise Unserved("repeats rows along another axis")
    for axis, size in zip(x.axes, site.shapes[0], strict=True):
        if size != size_of(x, axis) and axis != "1":
            raise Unserved("repeats rows along another axis")
    if any(a == "1" and size != 1 for a, size in zip(x.axes, site.shapes[0], strict=True)):
        raise Unserved("repeats rows along another axis")
    return x


def regrouped(x: Placed, target: tuple[object, ...]) -> Value:
    """Return a value with another shape of the same numbers."""
    rest = [axis for axis in x.axes if axis != "1"]
    groups: list[list[str]] = []
    split: Axes = ()
    for i, size in enumerate(target):
        if split:
            groups.append([split[0]])
            split = split[1:]
        elif rest and size_of(x, rest[0]) == size:
            groups.append([rest.pop(0)])
        elif size == 1:
            groups.append([])
        elif rest and (split := _parts(x, rest[0], target[i : i + 2])):
            rest.pop(0)
            groups.append([split[0]])
            split = split[1:]
        else:
            groups.append(_group(x, rest, size))
    if any(size_of(x, axis) != 1 for axis in rest):
        raise Unserved(f"has a shape {_shown(target)} that mixes the axes of its input")
    if isinstance(x, States):
        return _states(x, groups)
    names: dict[tuple[str, ...], str] = {("B", "T"): "BT", ("T", "B"): "TB"}
    axes = []
    for group in groups:
        if len(group) > 1 and tuple(group) not in names:
            raise Unserved(f"has a shape {_shown(target)} that mixes the axes of its input")
        axes.append(names[tuple(group)] if len(group) > 1 else "".join(group) or "1")
    return moved(x, tuple(axes))


def _parts(x: Placed, axis: str, sizes: tuple[object, ...]) -> Axes:
    """Return the axes into which one is split, if it can be."""
    if axis in ("BT", "TB") and sizes == tuple(axis):
        return tuple(axis)
    if axis == "S" and isinstance(x, States):
        layers = len(x.ends) // x.directions
        if sizes == (layers, x.directions):
            return ("L", "D")
    return ()


def _group(x: Placed, rest: list[str], size: object) -> list[str]:
    """Take the axes whose numbers together are one axis of `size`."""
    group: list[str] = []
    numbers = 1
    while rest:
        axis = rest.pop(0)
        group.append(axis)
        own = size_of(x, axis)
        if isinstance(own, int):
            numbers *= own
        if numbers == size or (size == "BT" and {"B", "T"} == set(group)):
            return group
    raise Unserved("has a shape that mixes the axes of its input")


def _states(x: States, groups: list[list[str]]) -> Value:
    """End states whose entries may now be side by side, as features."""
    axes: list[str] = []
    beside: list[str] = []
    for group in groups:
        if len(group) < 2:
            axes.append("".join(group) or "1")
        elif group == ["L", "D"]:
            axes.append("S")
        elif group[-1] == "F" and set(group) <= {"S", "L", "D", "F"}:
            beside = group[:-1]
            axes.append("F")
        else:
            raise Unserved("has a shape that mixes the axes of its input")
    if not beside:
        return settled(replace(x, axes=tuple(axes)))
    if {"S", "L", "D"} & set(axes):
        raise Unserved("joins some end states, and keeps others apart")
    ends = x.ends
    if beside == ["D", "L"]:
        ends = tuple(end for d in range(x.directions) for end in ends[d :: x.directions])
    return settled(replace(x, ends=ends, axes=tuple(axes)))


def columns_of(x: Rows, numbers: list[int]) -> Rows:
    """Return some features of rows."""
    if numbers == list(range(x.width)):
        return x
    return x.then(Select(ranges_of(numbers)))


def _shown(shape: tuple[object, ...]) -> str:
    return "(" + ", ".join(str(size) for size in shape) + ")"
