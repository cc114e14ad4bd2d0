"""Nodes that map rows: products, sums with constants, norms, activations."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sruserve.model.importers.onnx.embeddings import combined, embedded
from sruserve.model.importers.onnx.values import (
    ANY_LENGTH,
    FIXED,
    INVALID,
    Const,
    Flow,
    Refused,
    Value,
    added_rows,
    rows_of,
    sizes,
)
from sruserve.model.importers.options import shown
from sruserve.model.importers.wiring.layers import Activation, Linear, Residual
from sruserve.model.importers.wiring.steps import (
    Array,
    Rows,
    Softmax,
    activation,
    batch_norm,
    layer_norm,
    linear,
    scale,
    tensor,
)

_PLAIN = {"Relu": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid", "Softplus": "softplus"}
_JOINED: dict[str, Callable[..., Tensor]] = {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul}
ROW_NODES = (
    *_PLAIN, "Gelu", "LeakyRelu", "Elu", "Softmax", "LogSoftmax", "LayerNormalization",
    "BatchNormalization", "MatMul", "Gemm", "Add", "Sub", "Mul", "Div", "Swish",
)  # fmt: skip


def row_node(kind: str, name: str, inputs: list[Value | None], attributes: dict[str, Any]) -> Value:
    """Return the result of one of `ROW_NODES`; raises `Refused`."""
    if kind in ("Add", "Sub", "Mul", "Div"):
        return _arithmetic(kind, name, inputs)
    if not inputs or inputs[0] is None:
        raise Refused("has no input", INVALID)
    x = rows_of(inputs[0], name)
    if kind in _PLAIN:
        return x.then(activation(name, _PLAIN[kind]))
    if kind == "Swish":
        if attributes.get("alpha", 1.0) != 1.0:
            raise Refused("has an alpha other than 1")
        return x.then(activation(name, "silu"))
    if kind == "Gelu":
        exact = attributes.get("approximate", b"none") == b"none"
        return x.then(activation(name, "gelu" if exact else "gelu_tanh"))
    if kind == "LeakyRelu":
        return x.then(activation(name, "leaky_relu", float(attributes.get("alpha", 0.01))))
    if kind == "Elu":
        return x.then(activation(name, "elu", float(attributes.get("alpha", 1.0))))
    if kind in ("Softmax", "LogSoftmax"):
        if attributes.get("axis", -1) % len(x.axes) != x.features:
            raise Refused("is not over the features")
        return x.then(Softmax(name))
    if kind == "LayerNormalization":
        return _layer_norm(name, x, inputs, attributes)
    if kind == "BatchNormalization":
        return _batch_norm(name, x, inputs, attributes)
    return _product(kind, name, x, inputs, attributes)


def _layer_norm(name: str, x: Flow, inputs: list[Value | None], attributes: Any) -> Flow:
    if attributes.get("axis", -1) not in (-1, len(x.axes) - 1) or x.features != len(x.axes) - 1:
        raise Refused("is not over the features")
    gamma = _vector(inputs, 1, x.width)
    beta = _vector(inputs, 2, x.width) if len(inputs) > 2 else np.zeros_like(gamma)
    eps = float(attributes.get("epsilon", 1e-5))
    if not 0 < eps <= 1:
        raise Refused(
            f"has the epsilon {eps}; it must be above 0 and at most 1",
            "export the network with such a one",
        )
    # The file has the float32 nearest to the number that was written, such as 1e-05.
    return x.then(layer_norm(name, gamma, beta, float(f"{eps:.7g}")))


def _batch_norm(name: str, x: Flow, inputs: list[Value | None], attributes: Any) -> Flow:
    if attributes.get("training_mode", 0) or x.features != 1:
        raise Refused(
            "is not over the features, or is in training mode",
            "export the network in evaluation mode, with the features as axis 1",
        )
    gamma, beta, mean, variance = (_vector(inputs, i, x.width) for i in range(1, 5))
    eps = float(attributes.get("epsilon", 1e-5))
    if not (variance.astype(np.float64) + eps > 0).all():
        raise Refused("has a negative variance", "export the network as it was trained")
    return x.then(batch_norm(name, mean, variance, gamma, beta, eps))


def _product(kind: str, name: str, x: Flow, inputs: list[Value | None], attributes: Any) -> Flow:
    """Return a MatMul's or Gemm's rows times a constant."""
    weight = _floats(inputs, 1)
    if x.features != len(x.axes) - 1 or weight.ndim != 2:
        raise Refused("is not a product of rows and a constant matrix")
    bias = None
    if kind == "Gemm":
        alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
        if attributes.get("transA", 0) or (alpha, beta) != (1.0, 1.0) or len(x.axes) != 2:
            raise Refused("has transA, or an alpha or beta other than 1")
        weight = weight if attributes.get("transB", 0) else weight.T
        if len(inputs) > 2 and inputs[2] is not None:
            bias = _columns(_floats(inputs, 2), x, len(weight))
    else:
        weight = weight.T
    if weight.shape[1] != x.width or not len(weight):
        raise Refused(
            f"multiplies {x.width} columns by a matrix of {list(weight.T.shape)}", INVALID
        )
    return x.then(linear(name, weight, bias), width=len(weight))


def _arithmetic(kind: str, name: str, inputs: list[Value | None]) -> Value:
    left, right = inputs[0], inputs[1]
    if isinstance(left, Const):
        if kind in ("Sub", "Div"):
            return _reversed(kind, name, inputs)
        left, right = right, left
    assert left is not None
    x = rows_of(left, name)
    if not isinstance(right, Const):
        assert right is not None
        return _of_two(kind, name, x, rows_of(right, name))
    vector = _columns(_known(right), x, x.width).astype(np.float64)
    zeros, ones = np.zeros(x.width), np.ones(x.width)
    if kind in ("Add", "Sub"):
        return _add(name, x, vector if kind == "Add" else -vector)
    if kind == "Div":
        if not vector.all():
            raise Refused("divides by 0", "export the network with another constant")
        vector = 1 / vector
    return x.then(scale(name, zeros, ones * vector, zeros))


def _add(name: str, x: Flow, vector: Array) -> Flow:
    """Return x plus a vector: the bias of a product right before, or a layer of its own."""
    last = x.steps[-1] if x.steps else None
    if isinstance(last, Rows) and isinstance(last.layer, Linear) and last.layer.bias is None:
        with_bias = Rows(last.name, Linear(last.layer.weight, tensor(vector)))
        return Flow((*x.steps[:-1], with_bias), x.axes)
    ones, zeros = np.ones(x.width), np.zeros(x.width)
    return x.then(scale(name, zeros, ones, vector))


def _reversed(kind: str, name: str, inputs: list[Value | None]) -> Value:
    """Return a constant minus rows."""
    constant, right = inputs[0], inputs[1]
    if kind == "Div" or right is None or not isinstance(constant, Const):
        raise Refused("divides by what the network computes")
    x = rows_of(right, name)
    vector = _columns(_known(constant), x, x.width)
    return x.then(scale(name, np.zeros(x.width), -np.ones(x.width), vector))


def _of_two(kind: str, name: str, x: Flow, y: Flow) -> Flow:
    """Return a residual sum x + f(x), a product of x and a gate of x, or joined embeddings."""
    if sizes(x.axes) != sizes(y.axes):
        raise Refused("joins two branches of different shapes")
    shorter, longer = (x, y) if len(x.steps) <= len(y.steps) else (y, x)
    rows = added_rows(longer, shorter)
    if kind == "Add" and rows:
        return shorter.then(Rows(name, Residual(tuple(step.layer for step in rows))))
    if kind == "Mul" and rows and len(rows) == 1 and _is_sigmoid(rows[0]):
        return shorter.then(activation(name, "silu"))
    if kind in _JOINED and (both := embedded([x, y])):
        return combined(name, both, lambda tables: _JOINED[kind](*tables))
    raise Refused("joins two branches of the network, which cannot be served there")


def _is_sigmoid(rows: Rows) -> bool:
    return isinstance(rows.layer, Activation) and rows.layer.function == "sigmoid"


def _columns(array: Array, x: Flow, width: int) -> Array:
    """Return a constant that is spread over rows as one number for each column."""
    shape = (1,) * (len(x.axes) - array.ndim) + array.shape
    features = x.features
    fits = len(shape) == len(x.axes) and all(
        size == 1 or (place == features and size == width) for place, size in enumerate(shape)
    )
    if not fits:
        raise Refused(f"has a constant of shape {list(array.shape)}, which is not one for columns")
    return np.broadcast_to(array.reshape(-1), (width,))


def _vector(inputs: list[Value | None], number: int, width: int) -> Array:
    array = _floats(inputs, number)
    if array.shape != (width,):
        raise Refused(f"has a constant of shape {list(array.shape)}; it must be [{width}]", INVALID)
    return array


def _floats(inputs: list[Value | None], number: int) -> Array:
    value = inputs[number] if number < len(inputs) else None
    array = _known(value)
    if array.dtype.kind != "f":
        raise Refused(
            f"has numbers of type {shown(array.dtype)}, not floats", "export the network in float32"
        )
    return array


def _known(value: Value | None) -> Array:
    if not isinstance(value, Const):
        raise Refused("reads what the network computes where a constant is expected", FIXED)
    if value.sized:
        raise Refused("computes with the number of steps or inputs", ANY_LENGTH)
    return value.array
