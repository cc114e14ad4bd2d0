"""Compute the constants of a graph: shapes of tensors, and numbers made of them."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from sruserve.model.importers.onnx.values import (
    FOLDED,
    INVALID,
    Const,
    Refused,
)
from sruserve.model.importers.wiring.steps import Array

_MAX_NUMBERS = 1 << 26  # in a computed constant
_TYPES = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16, 11: np.float64}
Attributes = dict[str, Any]


def fold(kind: str, inputs: Sequence[Const | None], attributes: Attributes) -> Const:
    """Return a node's result of constants; raises `Refused` if it is none of the few known."""
    function = _FUNCTIONS.get(kind)
    if function is None:
        raise Refused("computes with constants in a way that is not supported", FOLDED)
    arrays = [None if value is None else value.array for value in inputs]
    try:
        if _result_size(kind, arrays, attributes) > _MAX_NUMBERS:
            raise Refused(f"computes too large a constant, of more than {_MAX_NUMBERS:,} numbers")
        array = function(arrays, attributes)
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, AttributeError) as error:
        raise Refused(f"does not fit its constants: {error}", INVALID) from error
    if kind == "ConstantOfShape":
        return Const(array)
    # The numbers that Expand copies do not depend on the shape, either.
    sources = inputs[:1] if kind == "Expand" else inputs
    return Const(array, any(value.sized for value in sources if value is not None))


def _result_size(kind: str, arrays: Sequence[Any], attributes: Attributes) -> int:
    """Return how many numbers a node computes; views of others take no memory."""
    if kind in ("Slice", "Transpose", "Identity", "Expand", "ConstantOfShape", "Unsqueeze"):
        return 0
    if kind == "Gather":
        rows = max(1, arrays[0].shape[attributes.get("axis", 0)])
        return int(arrays[0].size // rows * arrays[1].size)
    known = [array for array in arrays if array is not None]
    if kind in ("Concat", "Reshape", "Squeeze", "ReduceProd"):
        return sum(array.size for array in known)
    return prod(np.broadcast_shapes(*(array.shape for array in known)))


def as_shape(array: Array) -> tuple[int, ...]:
    """Return the numbers of a shape; raises `ValueError` for other numbers."""
    if array.dtype.kind not in "iu" or array.ndim > 1 or array.size > 16:
        raise ValueError("it needs a list of whole numbers")
    return tuple(int(n) for n in array.reshape(-1))


def slices(rank: int, arrays: Sequence[Array | None]) -> list[slice]:
    """Return the slices of a Slice node's constants: starts, ends, axes, steps."""
    arguments = [None if a is None else as_shape(a) for a in (*arrays, None, None)[:4]]
    starts, ends, axes, steps = arguments
    if starts is None or ends is None:
        raise ValueError("it needs starts and ends")
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    result = [slice(None)] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        low = -(1 << 62)
        result[axis] = slice(start, None if end < low else end, step)
    return result


def _slice(arrays: Sequence[Array | None], attributes: Attributes) -> Array:
    del attributes
    assert arrays[0] is not None
    return arrays[0][tuple(slices(arrays[0].ndim, arrays[1:]))]


def _expand(arrays: Sequence[Array | None], attributes: Attributes) -> Array:
    del attributes
    assert arrays[0] is not None
    assert arrays[1] is not None
    shape = np.broadcast_shapes(arrays[0].shape, as_shape(arrays[1]))
    return np.broadcast_to(arrays[0], shape)


def _constant_of_shape(arrays: Sequence[Array | None], attributes: Attributes) -> Array:
    assert arrays[0] is not None
    value = attributes.get("value", np.zeros(1, np.float32))
    return np.broadcast_to(value.reshape(()), as_shape(arrays[0]))


def _reshape(arrays: Sequence[Array | None], attributes: Attributes) -> Array:
    assert arrays[0] is not None
    assert arrays[1] is not None
    return arrays[0].reshape(new_shape(arrays[0].shape, as_shape(arrays[1]), attributes))


def new_shape(
    shape: Sequence[int], target: Sequence[int], attributes: Attributes
) -> tuple[int, ...]:
    """Return the sizes of a Reshape; raises `ValueError` if they do not fit."""
    copies = not attributes.get("allowzero", 0)
    sizes = [shape[i] if n == 0 and copies else n for i, n in enumerate(target)]
    total = int(np.prod(shape, dtype=np.int64))
    if -1 in sizes:
        known = int(np.prod([n for n in sizes if n != -1], dtype=np.int64))
        sizes[sizes.index(-1)] = total // known if known else 0
    if int(np.prod(sizes, dtype=np.int64)) != total or min(sizes, default=1) < 0:
        raise ValueError(f"{list(shape)} cannot have the shape {list(target)}")
    return tuple(sizes)


def _axes(arrays: Sequence[Array | None], attributes: Attributes) -> tuple[int, ...] | None:
    if len(arrays) > 1 and arrays[1] is not None:
        return as_shape(arrays[1])
    axes = attributes.get("axes")
    return None if axes is None else tuple(axes)


def _numbers(
    function: Callable[..., Array],
) -> Callable[[Sequence[Array | None], Attributes], Array]:
    def compute(arrays: Sequence[Array | None], attributes: Attributes) -> Array:
        del attributes
        with np.errstate(all="ignore"):
            return np.asarray(function(*arrays))

    return compute


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":
        return np.asarray(np.trunc(a / b), dtype=a.dtype)
    return np.asarray(a / b)


_FUNCTIONS: dict[str, Callable[[Sequence[Any], Attributes], Array]] = {
    "Identity": lambda arrays, _: arrays[0],
    "Cast": lambda arrays, attributes: arrays[0].astype(_TYPES[attributes["to"]]),
    "Gather": lambda arrays, attributes: np.take(
        arrays[0], arrays[1], axis=attributes.get("axis", 0)
    ),
    "Concat": lambda arrays, attributes: np.concatenate(arrays, axis=attributes["axis"]),
    "Slice": _slice,
    "Unsqueeze": lambda arrays, attributes: np.expand_dims(
        arrays[0], _axes(arrays, attributes) or ()
    ),
    "Squeeze": lambda arrays, attributes: np.squeeze(arrays[0], _axes(arrays, attributes)),
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Reshape": _reshape,
    "Transpose": lambda arrays, attributes: np.transpose(arrays[0], attributes.get("perm")),
    "Add": _numbers(np.add),
    "Sub": _numbers(np.subtract),
    "Mul": _numbers(np.multiply),
    "Div": _numbers(_divide),
    "Sqrt": _numbers(np.sqrt),
    "Reciprocal": _numbers(np.reciprocal),
    "Equal": _numbers(np.equal),
    "Where": _numbers(np.where),
    "ReduceProd": _numbers(lambda array, *_: np.prod(array, keepdims=True)),
}
