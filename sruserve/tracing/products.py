"""Products with weights: linear layers, embeddings, norms, and sums of weighted steps."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sruserve.model.importers.wiring.layers import Linear, Norm, scale
from sruserve.tracing.errors import Unserved
from sruserve.tracing.pooling import attend
from sruserve.tracing.table import Site, describe, handles, rows
from sruserve.tracing.values import Constant, Ids, Lookup, Rows, Value, Weights


@handles("linear")
def linear(site: Site, x: Value, weight: Value, bias: Value | None = None) -> Value:
    del site
    x = rows(x)
    if x.axes[-1] != "F":
        raise Unserved("multiplies another axis than the features")
    return x.then(Linear(_weights(weight).float(), None if bias is None else _weights(bias)))


@handles("matmul", "__matmul__", "bmm", "mm", "mv")
def matmul(site: Site, a: Any, b: Any) -> Value:
    del site
    if isinstance(a, Weights):
        return _sum_of_steps(a, b)
    if isinstance(b, Weights):
        return _sum_of_steps_left(rows(a), b)
    if isinstance(b, Constant):
        matrix = b.both()
        x = rows(a)
        if x.axes[-1] != "F" or matrix.dim() > 2:
            raise Unserved("multiplies another axis than the features")
        if matrix.dim() == 1:
            return replace(x.then(Linear(matrix[None])), axes=x.axes[:-1])
        return x.then(Linear(matrix.T))
    raise Unserved(f"multiplies {describe(a)} with {describe(b)}")


@handles("einsum")
def einsum(site: Site, equation: str, *operands: Any) -> Value:
    del site
    tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], tuple) else operands
    left, _, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(tensors) != 2 or "." in equation:
        raise Unserved("is an einsum that cannot be served")
    for (first, one), (second, two) in (
        (pair := list(zip(terms, tensors, strict=True))),
        pair[::-1],
    ):
        if isinstance(one, Weights) and isinstance(two, Rows):
            names = dict(zip(second, two.axes, strict=True))
            own = dict(zip(first, one.axes, strict=True))
            if all(axis in ("1", "F") or names.get(letter) == axis for letter, axis in own.items()):
                axes = tuple(names[letter] for letter in right if letter in names)
                if "T" not in axes and len(axes) == len(right):
                    return attend(one, two, axes)
    raise Unserved("is an einsum that cannot be served")


@handles("embedding")
def embedding(
    site: Site,
    ids: Value,
    weight: Value,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    *_: Any,
    **__: Any,
) -> Value:
    del site, padding_idx
    if not isinstance(ids, Ids):
        raise Unserved(f"looks up {describe(ids)}")
    if max_norm is not None:
        raise Unserved("has a max_norm: set it to None after training, once the rows are scaled")
    return Rows(Lookup(_weights(weight)), (*ids.axes, "F"))


@handles("one_hot")
def one_hot(site: Site, ids: Value, num_classes: int = -1) -> Value:
    del site
    if not isinstance(ids, Ids) or num_classes < 1:
        raise Unserved("needs the ids themselves and the number of classes")
    return Rows(Lookup(torch.eye(num_classes)), (*ids.axes, "F"))


@handles("layer_norm")
def layer_norm(
    site: Site,
    x: Value,
    normalized_shape: Any,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Value:
    del site
    x = rows(x)
    if x.axes[-1] != "F" or tuple(normalized_shape) != (x.width,):
        raise Unserved("normalizes more than the features of one step")
    own = torch.ones(x.width) if weight is None else _weights(weight)
    return x.then(Norm(own, torch.zeros(x.width) if bias is None else _weights(bias), eps))


@handles("batch_norm")
def batch_norm(
    site: Site,
    x: Value,
    running_mean: Value | None,
    running_var: Value | None,
    weight: Value | None = None,
    bias: Value | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Value:
    """Batch norm at inference, whose features are the second axis."""
    del site, momentum
    x = rows(x)
    if training or running_mean is None or running_var is None:
        raise Unserved("normalizes by the batch itself, so answers depend on other inputs")
    if len(x.axes) < 2 or x.axes[1] != "F":
        raise Unserved("normalizes another axis than the features")
    factor = (_weights(running_var).double() + eps).rsqrt()
    if weight is not None:
        factor = factor * _weights(weight).double()
    shift = 0.0 if bias is None else _weights(bias).double()
    norm = scale(factor, shift if isinstance(shift, float) else shift.expand_as(factor))
    return x.then(replace(norm, mean=_weights(running_mean).double()))


@handles("conv1d")
def conv1d(
    site: Site,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    """A convolution of one step is a linear layer."""
    del site, dilation
    x, matrix = rows(x), _weights(weight)
    if matrix.shape[-1] != 1 or padding not in (0, (0,)) or stride not in (1, (1,)) or groups != 1:
        raise Unserved("mixes neighbouring steps")
    if x.axes != ("B", "F", "T"):
        raise Unserved("convolves another axis than the steps")
    return x.then(Linear(matrix[..., 0], None if bias is None else _weights(bias)))


def _weights(value: Any) -> Tensor:
    if not isinstance(value, Constant):
        raise Unserved("has weights that are computed from the input")
    return value.both()


def _sum_of_steps(weights: Weights, outputs: Any) -> Value:
    """Weights (…, 1, T) times outputs (…, T, F)."""
    outputs = rows(outputs)
    if weights.axes[-1] != "T" or outputs.axes != ("B", "T", "F") or weights.axes[0] != "B":
        raise Unserved("multiplies weights of steps with rows of other axes")
    return attend(weights, outputs, (*weights.axes[:-1], "F"))


def _sum_of_steps_left(outputs: Rows, weights: Weights) -> Value:
    """Outputs (B, F, T) times weights (B, T, 1)."""
    if outputs.axes != ("B", "F", "T") or weights.axes[:2] != ("B", "T"):
        raise Unserved("multiplies weights of steps with rows of other axes")
    return attend(weights, outputs, ("B", "F", *weights.axes[2:]))
