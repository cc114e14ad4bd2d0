"""Pooling of a sequence's outputs into one row, as nodes."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sruserve.export.onnx.graph import FLOAT, Graph, Value
from sruserve.export.onnx.row_layers import add_row_layers
from sruserve.export.onnx.state import StateRows
from sruserve.export.onnx.steps import LOWEST, Steps
from sruserve.export.plain import PlainLinear
from sruserve.model.config import ModelConfig
from sruserve.model.state import StateLayout


def add_pooling(
    graph: Graph,
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    hidden: Value,
    state: StateRows,
    steps: Steps,
    layout: StateLayout,
) -> Value:
    """Pool rows of steps (..., width) up to the last one, as the head needs them: (batch, n)."""
    head = config.head
    rows: dict[str, Value] = {}
    names = {str(kind): name for kind, name in head.running()}
    for kind in head.poolings:
        match kind:
            case "last":
                rows[kind] = steps.last(hidden)
            case "mean" | "max":
                rows[kind] = _running(graph, kind, names[kind], hidden, state, steps, layout)
            case "attention":
                rows[kind] = _by_attention(graph, config, tensors, hidden, state, steps, layout)
    if "final" in head.poolings:  # it reads the end states, so all must have been written
        columns = {e.name: range(e.offset, e.offset + e.size) for e in layout.entries}
        chosen = [column for name in head.final for column in columns[name]]
        rows["final"] = graph.op.Gather(state.end(layout.width), chosen, axis=-1)
    parts = [rows[kind] for kind in head.poolings]
    return parts[0] if len(parts) == 1 else graph.op.Concat(*parts, axis=-1)


def add_pair_features(
    graph: Graph,
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    sides: list[tuple[Value, Steps]],
) -> Value:
    """Turn the outputs of both sides, (rows, width), into (batch, features)."""
    op, head = graph.op, config.head
    rows = []
    for side, (hidden, steps) in enumerate(sides):
        match head.pooling:
            case "mean":
                count = op.Cast(steps.counts(), to=FLOAT)
                rows.append(op.Div(steps.total(hidden), count))
            case "max":
                rows.append(steps.largest(hidden))
            case "attention":
                own = f"output.pool.{side}"
                weight, bias = (tensors[f"{own}.{n}"].float() for n in ("weight", "bias"))
                inner = op.Tanh(graph.linear(hidden, PlainLinear(weight, bias), own))
                score = PlainLinear(tensors[f"{own}.score"][None].float(), None)
                scores = graph.linear(inner, score, f"{own}.score")
                rows.append(_attended(graph, hidden, scores, steps))
            case _:
                rows.append(steps.last(hidden))
    if head.combine == "difference":
        a, b = rows
        rows += [op.Abs(op.Sub(a, b)), op.Mul(a, b)]
    return op.Concat(*rows, axis=-1)


def _running(
    graph: Graph,
    kind: str,
    name: str,
    hidden: Value,
    state: StateRows,
    steps: Steps,
    layout: StateLayout,
) -> Value:
    """Return the mean or the maximum of all steps so far, and advance its state."""
    op, column, at = graph.op, layout.column(name), layout.column(f"{name}.steps")
    width = at - column
    before = state.read(at, 1)
    count = op.Add(before, op.Cast(steps.counts(), to=FLOAT))
    state.write(at, 1, count)
    pooled = state.read(column, width)
    if kind == "mean":
        total = op.Add(pooled, steps.total(hidden))
        state.write(column, width, total)
        return op.Div(total, op.Max(count, 1.0))
    earlier = op.Where(op.Equal(before, 0.0), LOWEST, pooled)
    largest = op.Max(earlier, steps.largest(hidden))
    largest = op.Where(op.Equal(count, 0.0), 0.0, largest)
    state.write(column, width, largest)
    return largest


def _by_attention(
    graph: Graph,
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    hidden: Value,
    state: StateRows,
    steps: Steps,
    layout: StateLayout,
) -> Value:
    """Return the mean of all steps so far by the softmax of their scores, and advance its state."""
    op, layers = graph.op, config.head.attention
    if config.head.attention_final:
        beside = _beside_final(graph, config, hidden, steps)
        scores = add_row_layers(graph, layers, tensors, "pool.", beside)
        return _attended(graph, hidden, scores, steps)
    scores = add_row_layers(graph, layers, tensors, "pool.", hidden)
    column, width = layout.column("pool"), config.rnn.output_size
    places = {name: layout.column(f"pool.{name}") for name in ("weight", "largest", "previous")}
    at = layout.column("pool.steps")
    before = state.read(at, 1)
    count = op.Add(before, op.Cast(steps.counts(), to=FLOAT))
    earlier = op.Where(op.Equal(before, 0.0), LOWEST, state.read(places["previous"], 1))
    largest = op.Max(earlier, steps.largest(scores))
    # Sums are those of exp(score - largest): a new largest score makes the earlier ones smaller.
    factor = op.Exp(op.Sub(earlier, largest))
    weights = op.Exp(op.Sub(scores, steps.for_each(largest)))
    summed = op.Mul(state.read(column, width), factor)
    total = op.Add(summed, steps.total(op.Mul(hidden, weights)))
    weight = op.Add(op.Mul(state.read(places["weight"], 1), factor), steps.total(weights))
    largest = op.Where(op.Equal(count, 0.0), 0.0, largest)
    state.write(column, width, total)
    state.write(places["weight"], 1, weight)
    state.write(places["largest"], 1, largest)
    state.write(places["previous"], 1, op.Identity(largest))
    state.write(at, 1, count)
    return op.Div(total, op.Where(op.Equal(count, 0.0), 1.0, weight))


def _beside_final(graph: Graph, config: ModelConfig, hidden: Value, steps: Steps) -> Value:
    """Return each row beside what its sequence's directions end with, (rows, 2 * n)."""
    op, forward = graph.op, config.rnn.output_size // config.rnn.directions
    first = op.Squeeze(op.Slice(steps.with_time(hidden), [0], [1], [0]), [0])
    ends = op.Slice(steps.last(hidden), [0], [forward], [-1])
    final = op.Concat(ends, op.Slice(first, [forward], [2**62], [-1]), axis=-1)
    return op.Concat(hidden, steps.for_each(final), axis=-1)


def _attended(graph: Graph, hidden: Value, scores: Value, steps: Steps) -> Value:
    """Return the mean of each sequence's rows, weighted by the softmax of scores (..., 1)."""
    op = graph.op
    weights = op.Exp(op.Sub(scores, steps.for_each(steps.largest(scores))))
    return op.Div(steps.total(op.Mul(hidden, weights)), steps.total(weights))


def zeros(graph: Graph, counts: Value, width: int) -> Value:
    """Return zeros, (batch, width), for as many sequences as counts (batch, 1) has."""
    op = graph.op
    return op.Mul(op.Cast(counts, to=FLOAT), graph.weight("zeros", torch.zeros(1, width)))
