"""SRU++: attention over a ring of keys and values, for one step or for whole sequences."""

from sruserve.export.onnx.element_wise import add_recurrence
from sruserve.export.onnx.graph import FLOAT, INT, Graph, Op, Value
from sruserve.export.onnx.norm import normalize
from sruserve.export.onnx.state import StateRows
from sruserve.export.onnx.steps import Steps
from sruserve.export.plain import plain
from sruserve.kernels.attention import Attention
from sruserve.kernels.srupp import SRUppLayer

_HIDDEN = -1e30  # the score of a key that a query does not see


def add_srupp_layer(
    graph: Graph, layer: SRUppLayer, x: Value, state: StateRows, steps: Steps
) -> Value:
    """Add a layer over x (..., in); returns (..., width). See `SRUppLayer`."""
    narrow = plain(layer.narrow)
    normed = x if layer.norm is None else normalize(graph, x, layer.norm, "norm")
    z = graph.linear(normed, narrow, "narrow")
    attention = layer.attention
    if attention is not None:
        before = layer.inner_norm if layer.norm_before else None

        def query(z: Value) -> Value:
            return z if before is None else normalize(graph, z, before, "inner_norm")

        keys_values = plain(layer.keys_values)
        q = query(z)
        new = [graph.linear(q, keys_values, "keys_values")]
        if layer.norm is not None and attention.window is not None:
            raw = query(graph.linear(x, narrow, "narrow"))
            new.append(graph.linear(raw, keys_values, "keys_values"))
        mixed = _attend(graph, attention, narrow.outputs, q, new, state, steps)
        z = graph.op.Add(graph.op.Mul(mixed, attention.alpha), z)
    if layer.inner_norm is not None and not (attention is not None and layer.norm_before):
        z = normalize(graph, z, layer.inner_norm, "inner_norm")
    return add_recurrence(graph, layer.cell, z, x, state, steps)


def _attend(
    graph: Graph,
    attention: Attention,
    width: int,
    q: Value,
    new: list[Value],
    state: StateRows,
    steps: Steps,
) -> Value:
    """Mix the values that queries see; q (..., width), new: keys and values (..., 2 * width)."""
    op, window = graph.op, attention.window

    def by_stream(x: Value) -> Value:
        return op.Transpose(steps.with_time(x), perm=[1, 0, 2])

    queries = by_stream(q)  # (batch, time, width)
    rows = by_stream(new[0] if len(new) == 1 else op.Concat(*new, axis=-1))
    time = op.Range(0, op.Squeeze(op.Shape(rows, start=1, end=2), [0]), 1)
    counts = steps.counts()
    if steps.lengths is not None:  # a padded step may have NaN, which a weight of 0 leaves as it is
        padded = op.GreaterOrEqual(op.Unsqueeze(time, [0]), counts)
        rows = op.Where(op.Unsqueeze(padded, [2]), 0.0, rows)
    late = None
    if window is None:
        hidden = op.Unsqueeze(op.GreaterOrEqual(op.Unsqueeze(time, [0]), counts), [1])
        visible = rows
    else:
        depth = 2 * width * len(new)
        ring = op.Reshape(state.read(attention.column, window * depth), [0, window, depth])
        seen = op.Cast(state.read(attention.column + window * depth, 1), to=INT)
        slot = op.Range(0, window, 1)
        # Slot s has the newest position p before `seen` with p % window == s.
        newest = op.Sub(seen, 1)
        newest_in_slot = op.Sub(newest, op.Mod(op.Sub(newest, slot), window))
        positions = op.Add(time, seen)  # (batch, time)
        keys = op.Unsqueeze(op.Concat(newest_in_slot, positions, axis=1), [1])
        asking = op.Unsqueeze(positions, [2])
        age = op.Sub(asking, keys)  # (batch, time, window + time)
        hidden = op.Or(op.Or(op.Less(age, 0), op.Greater(age, window)), op.Less(keys, 0))
        if len(new) > 1:
            late = op.Less(keys, op.Sub(asking, op.Mod(asking, window)))
        visible = op.Concat(ring, rows, axis=1)
        _advance(graph, attention, window, depth, ring, rows, seen, counts, state)
    mixed = _mix(op, attention, width, queries, visible, hidden, late)
    return steps.rows(op.Transpose(mixed, perm=[1, 0, 2]))


def _advance(
    graph: Graph,
    attention: Attention,
    window: int,
    depth: int,
    ring: Value,
    rows: Value,
    seen: Value,
    counts: Value,
    state: StateRows,
) -> None:
    """Write the ring after the new rows, and the number of positions."""
    op = graph.op
    total = op.Add(seen, counts)
    newest = op.Sub(total, 1)
    newest_in_slot = op.Sub(newest, op.Mod(op.Sub(newest, op.Range(0, window, 1)), window))
    # Its place among the new rows; below 0: it is not there.
    place = op.Unsqueeze(op.Sub(newest_in_slot, seen), [2])
    fresh = op.GatherND(rows, op.Max(place, 0), batch_dims=1)
    after = op.Where(op.Less(place, 0), ring, fresh)
    state.write(attention.column, window * depth, op.Reshape(after, [0, window * depth]))
    count = op.Where(op.Less(total, 2 * window), total, op.Add(op.Mod(total, window), window))
    state.write(attention.column + window * depth, 1, op.Cast(count, to=FLOAT))


def _mix(
    op: Op,
    attention: Attention,
    width: int,
    queries: Value,
    visible: Value,
    hidden: Value,
    late: Value | None,
) -> Value:
    """Return softmax(q k^T) v, (batch, time, width); `late` keys are those of the memory."""
    heads = attention.heads
    size = width // heads

    def by_head(x: Value) -> Value:
        return op.Transpose(op.Reshape(x, [0, 0, heads, size]), perm=[0, 2, 1, 3])

    def part(number: int) -> Value:
        return by_head(op.Slice(visible, [number * width], [(number + 1) * width], [2]))

    def scores(number: int) -> Value:
        keys = op.Transpose(part(number), perm=[0, 1, 3, 2])
        return op.Mul(op.MatMul(by_head(queries), keys), size**-0.5)

    score = scores(0)
    if late is not None:
        late = op.Unsqueeze(late, [1])
        score = op.Where(late, scores(2), score)
    weight = op.Softmax(op.Where(op.Unsqueeze(hidden, [1]), _HIDDEN, score), axis=-1)
    if late is None:
        mixed = op.MatMul(weight, part(1))
    else:
        mixed = op.Add(
            op.MatMul(op.Where(late, 0.0, weight), part(1)),
            op.MatMul(op.Where(late, weight, 0.0), part(3)),
        )
    return op.Reshape(op.Transpose(mixed, perm=[0, 2, 1, 3]), [0, 0, width])
