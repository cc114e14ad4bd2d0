"""The norms of trained layers, as nodes."""

import math

from sruserve.export.onnx.graph import Graph, Value
from sruserve.kernels.norm import Norm, NormKind


def normalize(graph: Graph, x: Value, norm: Norm, name: str) -> Value:
    """Normalize the rows of x (..., n)."""
    if norm.kind is NormKind.UNBIASED:
        biased = norm.biased()
        return x if biased is None else normalize(graph, x, biased, name)
    op = graph.op
    weight = graph.weight(f"{name}.weight", norm.weight)
    bias = None if norm.bias is None else graph.weight(f"{name}.bias", norm.bias)
    if norm.kind is NormKind.LAYER:
        inputs = [x, weight] if bias is None else [x, weight, bias]
        return op.LayerNormalization(*inputs, axis=-1, epsilon=norm.epsilon)
    if norm.kind is NormKind.RMS:
        square = op.ReduceMean(op.Mul(x, x), [-1], keepdims=1)
        normed = op.Div(x, op.Sqrt(op.Add(square, norm.epsilon)))
    else:
        centred = op.Sub(x, op.ReduceMean(x, [-1], keepdims=1))
        variance = op.ReduceMean(op.Mul(centred, centred), [-1], keepdims=1)
        normed = op.Div(centred, op.Add(op.Sqrt(variance), norm.epsilon))
    normed = op.Mul(normed, weight)
    return normed if bias is None else op.Add(normed, bias)


def gelu(graph: Graph, x: Value) -> Value:
    """Compute the exact GELU, x Φ(x)."""
    op = graph.op
    return op.Mul(op.Mul(x, 0.5), op.Add(op.Erf(op.Mul(x, math.sqrt(0.5))), 1.0))
