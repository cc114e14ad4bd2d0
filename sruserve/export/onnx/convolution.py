"""Convolutions over time whose filters keep their largest value (Kim 2014), as nodes."""

import torch

from sruserve.export.onnx.graph import Graph, Op, Value, split
from sruserve.export.onnx.state import StateRows
from sruserve.export.onnx.steps import LOWEST, Steps
from sruserve.export.plain import plain
from sruserve.kernels.cell import Activation
from sruserve.kernels.convolution import ConvolutionLayer, Ending


def add_convolution_layer(
    graph: Graph, layer: ConvolutionLayer, x: Value, state: StateRows, steps: Steps
) -> Value:
    """Add a layer over x (..., in); returns (..., width). See `reference_convolution`."""
    op, windows = graph.op, layer.windows
    begun, sums = _sums(graph, layer, x, state, steps)
    whole = graph.weight("whole", layer.whole)

    def body(op: Op, largest: Value, count: Value, new: Value) -> list[Value]:
        later = op.Add(count, 1.0)
        kept = op.Where(op.Greater(later, whole), op.Max(largest, new), new)
        return [kept, later]

    starts = [state.read(windows.largest, layer.width), state.read(windows.steps, 1)]
    (largest, count), _ = steps.recur(body, starts, [sums])
    state.write(windows.largest, layer.width, largest.end)
    state.write(windows.steps, 1, count.end)
    best = op.Where(op.GreaterOrEqual(count.after, whole), largest.after, LOWEST)
    for ending in layer.endings:
        ended = _ended(graph, ending, begun[ending.taps], layer.width, count.after)
        wide = op.Max(graph.columns(best, ending.first, layer.width), ended)
        if ending.first:
            wide = op.Concat(graph.columns(best, 0, ending.first), wide, axis=-1)
        best = wide
    best = op.Add(best, graph.weight("bias", layer.bias))
    if layer.activation is not Activation.IDENTITY:
        best = op.Relu(best) if layer.activation is Activation.RELU else op.Tanh(best)
    return best if layer.order is None else op.Gather(best, layer.order.tolist(), axis=-1)


def _sums(
    graph: Graph, layer: ConvolutionLayer, x: Value, state: StateRows, steps: Steps
) -> tuple[list[Value | None], Value]:
    """Return the sums of windows that have begun, by their steps, and those of whole windows."""
    op, windows = graph.op, layer.windows
    planes = split(op, graph.linear(x, plain(layer.linear), "linear"), windows.planes())
    begun: list[Value | None] = [None]
    whole: list[Value] = []
    for taps, plane in enumerate(planes, 1):
        after, size = plane, windows.columns - windows.first(taps - 1)
        if (last := begun[-1]) is not None:
            column = windows.sums[taps - 2]
            before, end = steps.previous(state.read(column, size), last)
            state.write(column, size, end)
            after = op.Add(before, plane)
        ended = windows.first(taps) - windows.first(taps - 1)
        if ended:
            whole.append(graph.columns(after, 0, ended) if ended < size else after)
        begun.append(graph.columns(after, ended, size) if 0 < ended < size else after)
    return begun, whole[0] if len(whole) == 1 else op.Concat(*whole, axis=-1)


def _ended(graph: Graph, ending: Ending, begun: Value | None, width: int, count: Value) -> Value:
    """Return the sums of windows that end after the input, see `Ending.sums`."""
    op, name = graph.op, f"ending.{ending.taps}"
    filling = ending.filling
    if begun is None:
        zeros = torch.zeros(width - ending.first) if filling is None else filling
        ended = graph.weight(f"{name}.filling", zeros)
    else:
        ended = begun
        if filling is not None:
            ended = op.Add(begun, graph.weight(f"{name}.filling", filling))
    if ending.min_steps is not None:
        enough = op.GreaterOrEqual(count, graph.weight(f"{name}.fewest", ending.min_steps))
        ended = op.Where(enough, ended, LOWEST)
    if ending.max_steps is not None:
        few = op.GreaterOrEqual(graph.weight(f"{name}.most", ending.max_steps), count)
        ended = op.Where(few, ended, LOWEST)
    return ended
