"""Nodes that join embeddings of the same ids: one table."""

from collections.abc import Callable, Sequence

from torch import Tensor

from sruserve.model.errors import CheckpointError
from sruserve.model.importers.onnx.values import Axis, Flow, Refused, Value
from sruserve.model.importers.wiring.steps import Embed, Rows, tensor
from sruserve.model.importers.wiring.tables import one_table


def embedded(values: Sequence[Value | None]) -> list[Flow]:
    """Return values that are all computed from rows of tables alone; else an empty list."""
    flows = [each for each in values if isinstance(each, Flow)]
    for flow in flows:
        if not flow.steps or not isinstance(flow.steps[0], Embed):
            return []
        if not all(isinstance(step, Rows) for step in flow.steps[1:]):
            return []
    return flows if len(flows) == len(values) else []


def combined(
    name: str, flows: Sequence[Flow], combine: Callable[[Sequence[Tensor]], Tensor]
) -> Flow:
    """Return one table's rows for `embedded` values; see `one_table`."""
    places = [flow.axes[: flow.features] for flow in flows]
    if any(own != places[0] or len(own) + 1 != len(flows[0].axes) for own in places):
        raise Refused("joins embeddings of different shapes")
    parts = []
    for flow in flows:
        first, *rest = flow.steps
        assert isinstance(first, Embed)
        layers = tuple(step.layer for step in rest if isinstance(step, Rows))
        parts.append((tensor(first.table), layers))
    try:
        table = one_table(parts, combine).numpy()
    except CheckpointError as error:
        raise Refused(str(error)) from error
    row: Axis = (("feature", table.shape[1]),)
    return Flow((Embed(name, table),), (*places[0], row))
