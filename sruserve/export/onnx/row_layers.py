"""Layers that map each row by itself, as nodes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from sruserve.export.onnx.graph import Graph, Value
from sruserve.export.onnx.norm import gelu, normalize
from sruserve.export.plain import PlainLinear
from sruserve.kernels.norm import Norm
from sruserve.model.heads.row_layers import (
    ActivationLayer,
    LayerNormLayer,
    LinearLayer,
    ResidualLayer,
    ScaleLayer,
    SelectLayer,
)


def add_row_layers(
    graph: Graph, layers: Sequence[Any], tensors: Mapping[str, Tensor], prefix: str, x: Value
) -> Value:
    """Add layers in order over x (..., in), with tensors named as in `shapes_of`."""
    for number, layer in enumerate(layers):
        own = f"{prefix}{number}"
        x = _ADDED[type(layer)](graph, layer, tensors, own, x)
    return x


def _linear(graph: Graph, _: Any, tensors: Mapping[str, Tensor], own: str, x: Value) -> Value:
    bias = tensors.get(f"{own}.bias")
    weight = tensors[f"{own}.weight"].float()
    return graph.linear(x, PlainLinear(weight, None if bias is None else bias.float()), own)


def _layer_norm(
    graph: Graph, layer: LayerNormLayer, tensors: Mapping[str, Tensor], own: str, x: Value
) -> Value:
    weight, bias = (tensors[f"{own}.{name}"].float() for name in ("weight", "bias"))
    return normalize(graph, x, Norm(weight, bias, epsilon=layer.eps), own)


def _scale(graph: Graph, _: Any, tensors: Mapping[str, Tensor], own: str, x: Value) -> Value:
    mean, weight, bias = (
        graph.weight(f"{own}.{name}", tensors[f"{own}.{name}"].float())
        for name in ("mean", "weight", "bias")
    )
    op = graph.op
    return op.Add(op.Mul(op.Sub(x, mean), weight), bias)


def _activation(
    graph: Graph, layer: ActivationLayer, tensors: Mapping[str, Tensor], own: str, x: Value
) -> Value:
    del tensors, own
    op, slope = graph.op, layer.slope
    match layer.function:
        case "leaky_relu":
            return op.LeakyRelu(x, alpha=0.01 if slope is None else slope)
        case "elu":
            return op.Elu(x, alpha=1.0 if slope is None else slope)
        case "gelu":
            return gelu(graph, x)
        case "gelu_tanh":
            return op.Gelu(x, approximate="tanh")
        case "silu":
            return op.Mul(x, op.Sigmoid(x))
        case "relu" | "tanh" | "sigmoid" | "softplus":
            function: Callable[..., Value] = getattr(op, layer.function.capitalize())
            return function(x)


def _select(
    graph: Graph, layer: SelectLayer, tensors: Mapping[str, Tensor], own: str, x: Value
) -> Value:
    del tensors, own
    columns = np.concatenate([np.arange(begin, end) for begin, end in layer.ranges])
    return graph.op.Gather(x, columns.tolist(), axis=-1)


def _residual(
    graph: Graph, layer: ResidualLayer, tensors: Mapping[str, Tensor], own: str, x: Value
) -> Value:
    return graph.op.Add(x, add_row_layers(graph, layer.layers, tensors, f"{own}.", x))


_ADDED: dict[type, Callable[..., Value]] = {
    LinearLayer: _linear,
    LayerNormLayer: _layer_norm,
    ScaleLayer: _scale,
    ActivationLayer: _activation,
    SelectLayer: _select,
    ResidualLayer: _residual,
}
