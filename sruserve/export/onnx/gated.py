"""LSTM, GRU, RNN and ATR: steps with a product, and ONNX's own operators for whole sequences."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sruserve.export.onnx.graph import INT32, Graph, Op, Value, outputs, split
from sruserve.export.onnx.state import StateRows
from sruserve.export.onnx.steps import Recurrence, Steps
from sruserve.export.plain import PlainLinear, plain
from sruserve.kernels.gated import GatedLayer
from sruserve.kernels.gated_cell import GatedCell, GatedKind
from sruserve.kernels.panel_weight import PanelWeight

# ONNX's operator, the order of our blocks in it, and its attributes.
_OPERATORS: dict[GatedKind, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    GatedKind.LSTM: ("LSTM", (0, 3, 1, 2), {}),  # i, o, f, c of i, f, g, o
    GatedKind.GRU: ("GRU", (1, 0, 2), {"linear_before_reset": 1}),  # z, r, h of r, z, n
    GatedKind.GRU_RESET_BEFORE: ("GRU", (1, 0, 2), {"linear_before_reset": 0}),
    GatedKind.RNN_TANH: ("RNN", (0,), {"activations": ["Tanh"]}),
    GatedKind.RNN_RELU: ("RNN", (0,), {"activations": ["Relu"]}),
}


def add_gated_layer(
    graph: Graph, layer: GatedLayer, x: Value, state: StateRows, steps: Steps
) -> Value:
    """Add a layer over x (..., in); returns (..., width), forward columns, then backward ones."""
    linear = plain(layer.linear)
    biases: Sequence[Tensor | None] = [None] * len(layer.cells)
    if linear.bias is not None:
        biases = linear.bias.chunk(len(layer.cells))
    weights = linear.weight.chunk(len(layer.cells))
    outputs = []
    for cell, weight, bias in zip(layer.cells, weights, biases, strict=True):
        with graph.scope("backward" if cell.backward else "forward"):
            inputs = PlainLinear(weight, bias)
            h, ends = _direction(graph, cell, inputs, x, state, steps)
        state.write(cell.column, cell.outputs, ends[0])
        if cell.kind is GatedKind.LSTM:
            state.write(cell.cell_column, cell.width, ends[1])
        outputs.append(h)
    return outputs[0] if len(outputs) == 1 else graph.op.Concat(*outputs, axis=-1)


def _direction(
    graph: Graph, cell: GatedCell, inputs: PlainLinear, x: Value, state: StateRows, steps: Steps
) -> tuple[Value, list[Value]]:
    """Return h (..., outputs), and the end states."""
    starts = [state.read(cell.column, cell.outputs)]
    if cell.kind is GatedKind.LSTM:
        starts.append(state.read(cell.cell_column, cell.width))
    projects = cell.kind is GatedKind.LSTM and cell.second is not None
    one_operator = cell.kind in _OPERATORS and not projects and not graph.integer
    if steps.lengths is not None and one_operator:
        h, ends = _operator(graph, cell, inputs, steps.with_time(x), starts, steps.lengths)
        return steps.rows(h), ends
    u = graph.linear(x, inputs, "linear")
    around = _recurrences(graph, cell, u, starts, steps)
    return around[0].after, [each.end for each in around]


def _recurrences(
    graph: Graph, cell: GatedCell, u: Value, starts: list[Value], steps: Steps
) -> list[Recurrence]:
    first = _planar(cell.first)
    second = None if cell.second is None else _planar(cell.second)
    # Read outside the body, so that the weights belong to the graph itself.
    weights = [graph.weight("recurrent.weight", first.weight.T)]
    bias = graph.weight("recurrent.bias", first.bias) if first.bias is not None else None
    last = None if second is None else graph.weight("second.weight", second.weight.T)
    last_bias = None
    if second is not None and second.bias is not None:
        last_bias = graph.weight("second.bias", second.bias)

    def body(op: Op, *values: Value) -> list[Value]:
        def product(h: Value) -> Value:
            a = op.MatMul(h, weights[0])
            return a if bias is None else op.Add(a, bias)

        def second_product(h: Value) -> Value:
            a = op.MatMul(h, last)
            return a if last_bias is None else op.Add(a, last_bias)

        *states, step = values
        return _STEPS[cell.kind](op, cell, step, states, product, last and second_product)

    return steps.recur(body, starts, [u], backward=cell.backward)[0]


def _lstm(
    op: Op, cell: GatedCell, u: Value, states: list[Value], product: Any, project: Any
) -> list[Value]:
    gates = op.Add(u, product(states[0]))
    i, f, g, o = split(op, gates, [cell.width] * 4)
    c = op.Add(op.Mul(op.Sigmoid(f), states[1]), op.Mul(op.Sigmoid(i), op.Tanh(g)))
    h = op.Mul(op.Sigmoid(o), op.Tanh(c))
    return [project(h) if project else h, c]


def _gru(
    op: Op, cell: GatedCell, u: Value, states: list[Value], product: Any, _: Any
) -> list[Value]:
    (h,) = states
    sizes = [2 * cell.width, cell.width]
    u_rz, u_n = split(op, u, sizes)
    a_rz, a_n = split(op, product(h), sizes)
    r, z = split(op, op.Sigmoid(op.Add(u_rz, a_rz)), [cell.width] * 2)
    n = op.Tanh(op.Add(u_n, op.Mul(r, a_n)))
    return [op.Add(n, op.Mul(z, op.Sub(h, n)))]


def _gru_reset_before(
    op: Op, cell: GatedCell, u: Value, states: list[Value], product: Any, second: Any
) -> list[Value]:
    (h,) = states
    u_rz, u_n = split(op, u, [2 * cell.width, cell.width])
    gates = op.Sigmoid(op.Add(u_rz, product(h)))
    r, z = split(op, gates, [cell.width] * 2)
    n = op.Tanh(op.Add(u_n, second(op.Mul(r, h))))
    return [op.Add(n, op.Mul(z, op.Sub(h, n)))]


def _rnn(
    op: Op, cell: GatedCell, u: Value, states: list[Value], product: Any, _: Any
) -> list[Value]:
    a = op.Add(u, product(states[0]))
    return [op.Tanh(a) if cell.kind is GatedKind.RNN_TANH else op.Relu(a)]


def _atr(
    op: Op, cell: GatedCell, u: Value, states: list[Value], product: Any, _: Any
) -> list[Value]:
    (h,) = states
    q = product(h)
    i, f = op.Sigmoid(op.Add(u, q)), op.Sigmoid(op.Sub(u, q))
    new = op.Add(op.Mul(i, u), op.Mul(f, h))
    return [op.Tanh(new) if cell.kind is GatedKind.ATR_TANH else new]


_STEPS: dict[GatedKind, Callable[..., list[Value]]] = {
    GatedKind.LSTM: _lstm,
    GatedKind.GRU: _gru,
    GatedKind.GRU_RESET_BEFORE: _gru_reset_before,
    GatedKind.RNN_TANH: _rnn,
    GatedKind.RNN_RELU: _rnn,
    GatedKind.ATR_TANH: _atr,
    GatedKind.ATR_IDENTITY: _atr,
}


def _operator(
    graph: Graph,
    cell: GatedCell,
    inputs: PlainLinear,
    x: Value,
    starts: list[Value],
    lengths: Value,
) -> tuple[Value, list[Value]]:
    """Add ONNX's operator for a direction; returns h (time, batch, width) and the end states."""
    op, (name, order, attributes) = graph.op, _OPERATORS[cell.kind]
    recurrent = _planar(cell.first)
    if cell.kind is GatedKind.GRU_RESET_BEFORE:
        assert cell.second is not None
        recurrent = _joined(recurrent, _planar(cell.second))
    zeros = torch.zeros(len(inputs.weight))

    def ordered(tensor: Tensor) -> Tensor:
        blocks = tensor.chunk(len(order))
        return torch.cat([blocks[block] for block in order])

    biases = [ordered(zeros if b is None else b) for b in (inputs.bias, recurrent.bias)]
    values = [
        x,
        graph.weight("W", ordered(inputs.weight)[None]),
        graph.weight("R", ordered(recurrent.weight)[None]),
        graph.weight("B", torch.cat(biases)[None]),
        op.Cast(lengths, to=INT32),
        *(op.Unsqueeze(start, [0]) for start in starts),
    ]
    direction = "reverse" if cell.backward else "forward"
    node = getattr(op, name)(
        *values, hidden_size=cell.width, direction=direction, _outputs=1 + len(starts), **attributes
    )
    h, *ends = outputs(node)
    # The operator gives zeros for a sequence without steps.
    empty = op.Unsqueeze(op.Equal(lengths, 0), [1])
    return op.Squeeze(h, [1]), [
        op.Where(empty, start, op.Squeeze(end, [0]))
        for start, end in zip(starts, ends, strict=True)
    ]


def _planar(packed: PanelWeight) -> PlainLinear:
    """Return a recurrent weight as (gates * outputs, inputs), with its bias."""
    weight, bias = packed.plain()
    return PlainLinear(
        weight.transpose(1, 2).flatten(0, 1).contiguous(),
        None if packed.bias is None else bias.flatten().contiguous(),
    )


def _joined(a: PlainLinear, b: PlainLinear) -> PlainLinear:
    """Return both layers as one, a's rows first."""
    bias = None if a.bias is None or b.bias is None else torch.cat((a.bias, b.bias))
    return PlainLinear(torch.cat((a.weight, b.weight)), bias)
