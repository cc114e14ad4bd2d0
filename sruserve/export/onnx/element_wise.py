"""Layers whose recurrence is element-wise: SRU, LRN and QRNN.

A recurrence's body has only what the next step needs: the rest is computed for all steps at once.
"""

from collections.abc import Callable

import torch

from sruserve.export.onnx.graph import Graph, Op, Value, split
from sruserve.export.onnx.norm import normalize
from sruserve.export.onnx.state import StateRows
from sruserve.export.onnx.steps import Steps
from sruserve.export.plain import PlainLinear, plain
from sruserve.kernels.cell import Activation, Cell, Kind
from sruserve.kernels.layer import CellLayer


def add_cell_layer(
    graph: Graph, layer: CellLayer, x: Value, state: StateRows, steps: Steps
) -> Value:
    """Add a layer over x (..., in); returns (..., width)."""
    z = x
    if layer.norm is not None and not layer.norm_after:
        z = normalize(graph, z, layer.norm, "norm")
    if layer.projection is not None:
        z = graph.linear(z, plain(layer.projection), "projection")
    if layer.previous is not None:
        inputs = layer.linear.inputs // 2
        before, end = steps.previous(state.read(layer.previous, inputs), z)
        state.write(layer.previous, inputs, end)
        z = graph.op.Concat(z, before, axis=-1)
    return add_recurrence(graph, layer, z, x, state, steps)


def add_recurrence(
    graph: Graph, layer: CellLayer, z: Value, x: Value, state: StateRows, steps: Steps
) -> Value:
    """Add a layer's product, recurrence and norm: of z (..., linear's inputs), with its input x."""
    op, cell = graph.op, layer.cell
    planes = _planes(graph, layer, z, steps)
    skip = planes[3] if cell.blocks == 4 else None
    if layer.highway_is_input:
        skip = op.Mul(x, cell.scale) if graph.rescales else x
    start = state.read(layer.column, layer.width)
    h, end = _KINDS[cell.kind](graph, layer, planes, skip, start, steps)
    state.write(layer.column, layer.width, end)
    if layer.norm is not None and layer.norm_after:
        h = normalize(graph, h, layer.norm, "norm")
    return h


def _planes(graph: Graph, layer: CellLayer, z: Value, steps: Steps) -> list[Value]:
    """Compute the planes of u, (rows, width) each."""
    op, linear = graph.op, _with_gate_biases(layer)
    normed = layer.inner_norm is not None or layer.inner_bias is not None
    if steps.lengths is not None and not normed:  # to cut many rows would take a pass over them
        weights = linear.weight.chunk(layer.cell.blocks)
        biases = [None] * len(weights) if linear.bias is None else linear.bias.chunk(len(weights))
        planes = []
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            if bias is not None and not graph.needs_bias(bias, f"linear.{i}.bias"):
                bias = None
            planes.append(graph.linear(z, PlainLinear(weight, bias), f"linear.{i}"))
        return planes
    u = graph.linear(z, linear, "linear")
    if layer.inner_norm is not None:
        u = normalize(graph, u, layer.inner_norm, "inner_norm")
    if layer.inner_bias is not None:
        u = op.Add(u, graph.weight("inner_bias", layer.inner_bias))
    return list(split(op, u, [layer.width] * layer.cell.blocks))


def _with_gate_biases(layer: CellLayer) -> PlainLinear:
    """Return a layer's product, with SRU's biases of the gates in their planes."""
    linear = plain(layer.linear)
    if layer.bias is None:
        return linear
    planes = torch.zeros(layer.cell.blocks, layer.width)
    planes[1:3] = layer.bias
    bias = planes.flatten()
    return PlainLinear(linear.weight, bias if linear.bias is None else linear.bias + bias)


def _sru(
    graph: Graph,
    layer: CellLayer,
    planes: list[Value],
    skip: Value | None,
    start: Value,
    steps: Steps,
) -> tuple[Value, Value]:
    """Lei et al. 2018, eq. 1-4: only c is recurrent."""
    assert layer.weight_c is not None
    op, weight_c = graph.op, layer.weight_c
    forget = graph.weight("weight_c.forget", weight_c[0])
    reset = graph.weight("weight_c.reset", weight_c[1])

    def body(op: Op, c: Value, z: Value, u: Value) -> list[Value]:
        f = op.Sigmoid(op.Add(u, op.Mul(c, forget)))
        new = op.Add(z, op.Mul(op.Sub(c, z), f))
        # While c is in cache; the reset gate itself is computed for all steps at once.
        return [new, op.Mul(new if layer.cell.updated_reset else c, reset)]

    (c,), (read,) = steps.recur(body, [start], planes[:2], layer.backward_from, further=1)
    r = op.Sigmoid(op.Add(planes[2], read))
    return _highway(op, _activated(op, layer.cell, c.after), r, skip), c.end


def _lrn(
    graph: Graph,
    layer: CellLayer,
    planes: list[Value],
    skip: Value | None,
    start: Value,
    steps: Steps,
) -> tuple[Value, Value]:
    """Zhang and Sennrich 2019; with a fourth plane oLRN, whose output gate reads the new c."""
    del graph
    key, query, value = planes[:3]

    def body(op: Op, h: Value, p: Value, q: Value, r: Value, *gate: Value) -> list[Value]:
        i, f = op.Sigmoid(op.Add(p, h)), op.Sigmoid(op.Sub(q, h))
        new = _activated(op, layer.cell, op.Add(op.Mul(i, r), op.Mul(f, h)))
        return [op.Mul(op.Sigmoid(op.Sub(gate[0], new)), new) if gate else new]

    inputs = [key, query, value, *([] if skip is None else [skip])]
    (h,), _ = steps.recur(body, [start], inputs, layer.backward_from)
    return h.after, h.end


def _qrnn(
    graph: Graph,
    layer: CellLayer,
    planes: list[Value],
    skip: Value | None,
    start: Value,
    steps: Steps,
) -> tuple[Value, Value]:
    """Bradbury et al. 2017, as released: f gates the new value."""
    op = graph.op
    z, f = op.Tanh(planes[0]), op.Sigmoid(planes[1])
    if layer.cell.keep != 1:
        f = op.Mul(f, layer.cell.keep)

    def body(op: Op, c: Value, z: Value, f: Value) -> list[Value]:
        return [op.Add(c, op.Mul(f, op.Sub(z, c)))]

    (c,), _ = steps.recur(body, [start], [z, f], layer.backward_from)
    if layer.cell.blocks == 2:
        return c.after, c.end
    return _highway(op, c.after, op.Sigmoid(planes[2]), skip), c.end


def _highway(op: Op, value: Value, gate: Value, x: Value | None) -> Value:
    if x is None:
        return op.Mul(value, gate)
    return op.Add(x, op.Mul(op.Sub(value, x), gate))


def _activated(op: Op, cell: Cell, c: Value) -> Value:
    match cell.activation:
        case Activation.IDENTITY:
            return c
        case Activation.TANH:
            return op.Tanh(c)
        case Activation.RELU:
            return op.Relu(c)
        case Activation.SELU:
            return op.Selu(c)


_KINDS: dict[Kind, Callable[..., tuple[Value, Value]]] = {
    Kind.SRU: _sru,
    Kind.LRN: _lrn,
    Kind.QRNN: _qrnn,
}
