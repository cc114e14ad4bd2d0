"""Nodes that join several poolings of the same outputs."""

from collections.abc import Sequence

from sruserve.model.importers.onnx.values import Axis, Const, Flow, Refused, Value, rows_of
from sruserve.model.importers.wiring.layers import Select
from sruserve.model.importers.wiring.network import End, Pooling
from sruserve.model.importers.wiring.poolings import joined
from sruserve.model.importers.wiring.steps import Pool, Recurrent, Rows, Step


def side_by_side(name: str, values: Sequence[Value | None], axis: int) -> Flow:
    """Return the rows of poolings, and of end states, joined feature by feature."""
    flows = [rows_of(value, name) for value in values if value is not None]
    if any(isinstance(value, Const) for value in values) or not flows:
        raise Refused("joins constants with what the network computes")
    steps = max((_before(flow) for flow in flows), key=len)
    parts = [_poolings(flow, steps) for flow in flows]
    first = flows[0]
    others = [(*flow.axes[: flow.features], *flow.axes[flow.features + 1 :]) for flow in flows]
    if axis % len(first.axes) != first.features or any(own != others[0] for own in others):
        raise Refused("joins poolings along another axis than their features")
    last = steps[-1]
    if not isinstance(last, Recurrent):
        raise Refused("joins poolings of something other than the recurrent layers' own outputs")
    poolings, ranges = joined(parts, last.hidden * len(last.directions), _end(steps))
    chain: tuple[Step, ...] = (*steps, Pool(name, poolings))
    columns = tuple(each for own in ranges for each in own)
    if columns != _in_order(columns):
        chain = (*chain, Rows(name, Select(columns)))
    row: Axis = (("feature", sum(end - begin for begin, end in columns)),)
    axes = (*first.axes[: first.features], row, *first.axes[first.features + 1 :])
    return Flow(chain, axes)


def _before(flow: Flow) -> tuple[Step, ...]:
    """Return the steps before a flow's pooling, which must be its last step."""
    if not flow.steps or not isinstance(flow.steps[-1], Pool):
        raise Refused(
            "joins two branches; only poolings of the recurrent layers, their end states and "
            "embeddings can be joined"
        )
    return flow.steps[:-1]


def _poolings(flow: Flow, steps: Sequence[Step]) -> Sequence[Pooling]:
    """Return a flow's poolings as those of the outputs of `steps`."""
    own, pool = _before(flow), flow.steps[-1]
    assert isinstance(pool, Pool)
    if any(a is not b for a, b in zip(own, steps, strict=False)):
        raise Refused("joins poolings of two branches")
    kinds = {pooling.kind for pooling in pool.poolings}
    if len(own) < len(steps) and kinds == {"last"} and (end := _end(own)) is not None:
        return [Pooling("final", (end,))]
    if len(own) < len(steps) and kinds != {"final"}:
        raise Refused("joins poolings of different recurrent layers")
    return pool.poolings


def _end(steps: Sequence[Step]) -> End | None:
    """Return the part of the end state that the last output is; None if it is none."""
    layers = [step for step in steps if isinstance(step, Recurrent)]
    if not layers or layers[-1] is not steps[-1] or len(layers[-1].directions) > 1:
        return None
    return End(len(layers) - 1, "h", 0, layers[-1].hidden)


def _in_order(columns: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return ranges of the same widths that follow each other from 0."""
    ranges: list[tuple[int, int]] = []
    begin = 0
    for first, end in columns:
        ranges.append((begin, begin + end - first))
        begin = ranges[-1][1]
    return tuple(ranges)
