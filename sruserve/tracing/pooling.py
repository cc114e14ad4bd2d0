"""Poolings: one row for a sequence, from the outputs of its steps or from its end states."""

from dataclasses import replace
from typing import Any

from sruserve.model.importers.wiring.layers import (
    Select,
    Softmax,
    columns,
    commutes,
    ranges_of,
)
from sruserve.model.importers.wiring.network import End
from sruserve.tracing.errors import Unserved
from sruserve.tracing.values import Axes, Outputs, Pooled, Rows, Weighted, Weights, pooled


def pool(x: Rows, kind: str, keep: bool = False) -> Rows:
    """Pool the steps of rows; layers that commute with the pooling then follow it."""
    if not isinstance(x.origin, Outputs):
        raise Unserved("pools steps that are not the outputs of a recurrent module")
    if "T" not in x.axes:
        raise Unserved("pools both sequences and steps")
    axes = without(x.axes, "T", keep)
    if kind in ("first", "last") and (half := _half(x, x.origin, kind == "first")):
        return replace(half, axes=axes)
    if kind == "first":
        raise Unserved("reads the first step's output, before the rest of the input")
    for layer in x.layers:
        if not commutes(layer, kind):
            raise Unserved(f"takes the {kind} of the steps after an operation on each of them")
    return Rows(pooled(x.origin, kind), axes, x.layers)


def mean_of_sum(x: Rows) -> Rows:
    """Return the mean over steps: their sum, divided by their number."""
    if isinstance(x.origin, Pooled) and x.origin.kind == "sum":
        return replace(x, origin=pooled(x.origin.outputs, "mean"))
    raise Unserved("divides by the number of steps what is not their sum")


def attention(scores: Rows) -> Weights:
    """Return the softmax over the steps of rows of one score."""
    if not isinstance(scores.origin, Outputs) or scores.width != 1:
        raise Unserved("is a softmax over the steps of more than one score")
    if any(isinstance(layer, Softmax) for layer in scores.layers):
        raise Unserved("is a softmax of a softmax")
    return Weights(scores, scores.axes)


def weighted(a: Any, b: Any) -> Weighted:
    """Return outputs times the weights of their steps."""
    weights, outputs = (a, b) if isinstance(a, Weights) else (b, a)
    if not isinstance(weights, Weights) or not isinstance(outputs, Rows):
        raise Unserved("multiplies weights of steps with something else than outputs")
    check_attended(weights, outputs)
    aligned = ("1",) * (len(outputs.axes) - len(weights.axes)) + weights.axes
    for axis, own in zip(outputs.axes, aligned, strict=False):
        if axis == "F" and own not in ("1", "F"):
            raise Unserved("multiplies weights of steps with features")
        if axis != "F" and own != axis:
            raise Unserved("multiplies weights of steps with rows of other axes")
    return Weighted(outputs, weights, outputs.axes)


def attend(weights: Weights, outputs: Rows, axes: Axes) -> Rows:
    """Return the weighted sum of the steps."""
    check_attended(weights, outputs)
    assert isinstance(outputs.origin, Outputs)
    layers = weights.scores.layers
    return Rows(pooled(outputs.origin, "attention", attention=layers), axes, outputs.layers)


def check_attended(weights: Weights, outputs: Rows) -> None:
    """Raise `Unserved` unless the weights are those of these outputs' own steps."""
    if weights.scores.origin is not outputs.origin:
        raise Unserved("multiplies weights of steps with other rows than those that they score")
    for layer in outputs.layers:  # the weights sum to 1, so an affine map commutes
        if not commutes(layer, "mean"):
            raise Unserved("sums the steps after an operation on each of them")


def end_of_last(outputs: Outputs) -> End | None:
    """Return the part of the end state that is the last step's output; None if no part is."""
    stage = outputs.stages[-1]
    if outputs.bidirectional or stage.kinds[0][0] != "h":
        return None
    return End(outputs.depth - 1, "h", 0, stage.output_size)


def without(axes: Axes, axis: str, keep: bool) -> Axes:
    """Return axes without one; `keep` leaves an axis of one entry in its place."""
    place = axes.index(axis)
    return (*axes[:place], *(("1",) if keep else ()), *axes[place + 1 :])


def _half(x: Rows, outputs: Outputs, backward: bool) -> Rows | None:
    """Return one direction's end state: its output at the last step that it reads.

    Returns None unless the rows begin with features of that direction alone.
    """
    stage = outputs.stages[-1]
    half = stage.output_size // 2
    first = x.layers[0] if x.layers else None
    if stage.directions != 2 or stage.family != "torch" or not isinstance(first, Select):
        return None
    numbers = [column - half * backward for column in columns(first).tolist()]
    if not 0 <= min(numbers) <= max(numbers) < half:
        return None
    end = End(outputs.depth - 1, "h", int(backward), half)
    layers = (Select(ranges_of(numbers)), *x.layers[1:])
    return Rows(pooled(outputs, "final", (end,)), x.axes, layers)
