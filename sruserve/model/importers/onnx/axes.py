"""Nodes that move, join, choose or reduce axes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from sruserve.model.importers.onnx.constants import as_shape, new_shape, slices
from sruserve.model.importers.onnx.embeddings import combined, embedded
from sruserve.model.importers.onnx.poolings import side_by_side
from sruserve.model.importers.onnx.values import (
    ANY_LENGTH,
    FIXED,
    INVALID,
    Axis,
    Const,
    Flow,
    Refused,
    States,
    Value,
    axis_of,
    reshaped,
    rows_of,
    sizes,
    with_axes,
)
from sruserve.model.importers.wiring.steps import Embed, pool, select

_NO_END = (1 << 31) - 1  # at least: what exporters write for a slice without an end
_POOLS = {
    "ReduceMean": "mean", "ReduceMax": "max", "GlobalAveragePool": "mean", "GlobalMaxPool": "max"
}  # fmt: skip
AXIS_NODES = (
    *_POOLS, "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Gather", "Slice", "Concat",
)  # fmt: skip


def axis_node(
    kind: str, name: str, inputs: Sequence[Value | None], attributes: dict[str, Any]
) -> Value:
    """Return the result of one of `AXIS_NODES`; raises `Refused`."""
    if kind == "Concat":
        return _concat(name, inputs, attributes)
    if kind == "Gather" and isinstance(inputs[0], Const):
        return _embed(name, inputs, attributes)
    x = inputs[0]
    if x is None or isinstance(x, Const):
        raise Refused("reads a constant where the network's rows are expected")
    rank = len(x.axes)
    try:
        if kind == "Transpose":
            order = attributes.get("perm", range(rank)[::-1])
            return with_axes(x, [x.axes[i] for i in order])
        if kind == "Reshape":
            shape = new_shape(sizes(x.axes), as_shape(_constant(inputs[1])), attributes)
            return with_axes(x, reshaped(x.axes, shape))
        if kind == "Flatten":
            first = attributes.get("axis", 1) % (rank + 1)
            return with_axes(x, reshaped(x.axes, _flat(sizes(x.axes), first)))
        if kind == "Squeeze":
            return with_axes(x, _squeezed(x.axes, _axes(inputs, attributes)))
        if kind == "Unsqueeze":
            return with_axes(x, _unsqueezed(x.axes, _axes(inputs, attributes) or ()))
        if kind == "Gather":
            axis = attributes.get("axis", 0) % rank
            _check_sized(x, inputs[1:], [axis])
            return _gather(name, x, _constant(inputs[1]), axis)
        if kind == "Slice":
            constants = [None if value is None else _constant(value) for value in inputs[1:]]
            ranges = slices(rank, constants)
            _check_sized(x, inputs[1:], [i for i, r in enumerate(ranges) if r != slice(None)])
            return _sliced(name, x, ranges)
    except (ValueError, IndexError, TypeError) as error:
        raise Refused(f"does not fit its input: {error}", INVALID) from error
    return _reduce(kind, name, x, inputs, attributes)


def _constant(value: Value | None) -> Any:
    if not isinstance(value, Const):
        raise Refused("reads what the network computes where a constant is expected", FIXED)
    return value.array


def _check_sized(x: Flow | States, places: Sequence[Value | None], axes: Sequence[int]) -> None:
    """Raise `Refused` if the number of steps says which features or states are taken."""
    if any(isinstance(place, Const) and place.sized for place in places):
        labels = {label for axis in axes for label, _ in x.axes[axis]}
        if labels - {"time"}:
            raise Refused("computes with the number of steps or inputs", ANY_LENGTH)


def _axes(inputs: Sequence[Value | None], attributes: dict[str, Any]) -> tuple[int, ...] | None:
    """Return the axes of a node: an input since opset 13, an attribute before."""
    if len(inputs) > 1 and inputs[1] is not None:
        return as_shape(_constant(inputs[1]))
    axes = attributes.get("axes")
    return None if axes is None else tuple(axes)


def _flat(shape: Sequence[int], first: int) -> tuple[int, int]:
    rows = columns = 1
    for number, size in enumerate(shape):
        if number < first:
            rows *= size
        else:
            columns *= size
    return rows, columns


def _squeezed(axes: Sequence[Axis], which: tuple[int, ...] | None) -> list[Axis]:
    shape = sizes(axes)
    if which is None:
        dropped = {i for i, size in enumerate(shape) if size == 1}
    else:
        dropped = {i % len(axes) for i in which}
    if any(shape[i] != 1 for i in dropped):
        raise Refused(f"removes axes of shape {list(shape)} whose size is not 1", INVALID)
    return [axis for i, axis in enumerate(axes) if i not in dropped]


def _unsqueezed(axes: Sequence[Axis], which: Sequence[int]) -> list[Axis]:
    rank = len(axes) + len(which)
    added = {i % rank for i in which}
    rest = iter(axes)
    return [() if i in added else next(rest) for i in range(rank)]


def _embed(name: str, inputs: Sequence[Value | None], attributes: dict[str, Any]) -> Value:
    """Return the rows of a table at the network's ids."""
    table, ids = inputs[0], inputs[1]
    assert isinstance(table, Const)
    if table.sized or table.array.ndim != 2 or table.array.dtype.kind != "f":
        raise Refused("looks up in something other than a table of floats")
    if not isinstance(ids, Flow) or ids.steps or axis_of(ids, "feature") is not None:
        raise Refused("looks up something other than the input's ids")
    if attributes.get("axis", 0) != 0:
        raise Refused("looks up columns")
    return Flow((Embed(name, table.array),), (*ids.axes, (("feature", table.array.shape[1]),)))


def _gather(name: str, x: Flow | States, index: Any, axis: int) -> Value:
    """Return one step, some features, or the end state of one direction."""
    chosen = [int(i) for i in index.reshape(-1)]
    if len(chosen) != 1 or index.ndim > 1:
        raise Refused("chooses several places")
    size = sizes(x.axes)[axis]
    if not -size <= chosen[0] < size:
        raise Refused(f"chooses place {chosen[0]} of {size}", INVALID)
    begin = chosen[0] % size
    result = _range(name, x, axis, begin, begin + 1)
    return result if index.ndim else with_axes(result, _squeezed(result.axes, (axis,)))


def _sliced(name: str, x: Flow | States, ranges: Sequence[slice]) -> Value:
    for axis, each in enumerate(ranges):
        size = sizes(x.axes)[axis]
        if any(label == "time" for label, _ in x.axes[axis]):
            _check_cuts_none(each, size)
        begin, end, step = each.indices(size)
        if (begin, end, step) != (0, size, 1):
            if step != 1 or begin >= end:
                raise Refused("takes every other place, or none")
            x = _range(name, x, axis, begin, end)
    return x


def _check_cuts_none(places: slice, size: int) -> None:
    """Raise `Refused` for places that are all steps of a short input, but not of a long one."""
    start, end = places.start or 0, places.stop
    if start < -size or (end is not None and size < end < _NO_END):
        steps = -start if start < -size else end
        raise Refused(
            f"cuts inputs of more than {steps:,} steps, and the server cuts none",
            "export the network without the cut, and cut its inputs before they are sent",
        )


def _range(name: str, x: Flow | States, axis: int, begin: int, end: int) -> Flow | States:
    """Return the places from `begin` to `end` of an axis."""
    labels = [label for label, _ in x.axes[axis]]
    size = sizes(x.axes)[axis]
    axes = list(x.axes)
    if (begin, end) == (0, size):
        return x
    if labels == ["time"] and isinstance(x, Flow):
        if (begin, end) != (size - 1, size):
            raise Refused("takes some steps; only the last step can be served")
        axes[axis] = ()
        return Flow((*x.steps, pool(name, "last")), tuple(axes))
    if labels == ["feature"] and isinstance(x, Flow):
        return x.then(select(name, begin, end), width=end - begin)
    if labels == ["direction"] and isinstance(x, States):
        axes[axis] = (("direction", end - begin),) if end - begin > 1 else ()
        return States(x.parts[begin:end], tuple(axes))
    raise Refused(f"takes a part of an axis ({', '.join(labels) or 'of size 1'})")


def _concat(name: str, inputs: Sequence[Value | None], attributes: dict[str, Any]) -> Value:
    """Return end states, embeddings or poolings, side by side."""
    if flows := embedded(inputs):
        if attributes.get("axis", 0) % len(flows[0].axes) != flows[0].features:
            raise Refused("joins embeddings along another axis than their features")
        return combined(name, flows, lambda tables: torch.cat(list(tables), 1))
    states = [value for value in inputs if isinstance(value, States)]
    if len(states) != len(inputs) or not states:
        return side_by_side(name, inputs, attributes.get("axis", 0))
    rank = len(states[0].axes)
    axis = attributes.get("axis", 0) % rank
    parts = tuple(part for each in states for part in each.parts)
    if any(len(each.axes) != rank for each in states):
        raise Refused("joins tensors of different shapes", INVALID)
    for each in states:
        others = [a for i, a in enumerate(each.axes) if i != axis]
        if others != [a for i, a in enumerate(states[0].axes) if i != axis]:
            raise Refused("joins tensors of different shapes", INVALID)
    labels = {label for each in states for label, _ in each.axes[axis]}
    axes = list(states[0].axes)
    if labels == {"feature"}:
        if axis_of(states[0], "direction") is not None:
            raise Refused("joins end states of several layers feature by feature")
        axes[axis] = (("feature", sum(sizes(each.axes)[axis] for each in states)),)
    elif labels <= {"direction"}:
        axes[axis] = (("direction", sum(sizes(each.axes)[axis] for each in states)),)
    else:
        raise Refused("joins end states along another axis than directions or features")
    return States(parts, tuple(axes))


def _reduce(
    kind: str, name: str, value: Flow | States, inputs: Sequence[Value | None], attributes: Any
) -> Value:
    """Return the mean or maximum of all steps."""
    x = rows_of(value, name)
    rank = len(x.axes)
    if kind.startswith("Global"):
        if x.features != 1 or rank < 3:
            raise Refused("must pool (batch, features, steps)")
        axes, keep = tuple(range(2, rank)), True
    else:
        axes = _axes(inputs, attributes) or tuple(range(rank))
        keep = bool(attributes.get("keepdims", 1))
    axes = tuple(axis % rank for axis in axes)
    times = [axis for axis in axes if [label for label, _ in x.axes[axis]] == ["time"]]
    if len(times) != 1 or any(x.axes[axis] for axis in axes if axis not in times):
        raise Refused("reduces something other than the steps")
    kept = [() if i in axes else axis for i, axis in enumerate(x.axes)]
    if not keep:
        kept = [axis for i, axis in enumerate(x.axes) if i not in axes]
    return replace(x, steps=(*x.steps, pool(name, _POOLS[kind])), axes=tuple(kept))
