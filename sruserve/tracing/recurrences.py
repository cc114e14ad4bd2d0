"""Calls of recurrent modules: the stack that they form, its outputs and its end states."""

from typing import Any

from sruserve.model.importers.wiring.network import End
from sruserve.tracing.errors import Unserved
from sruserve.tracing.recorder import Packed
from sruserve.tracing.stages import Stage
from sruserve.tracing.table import describe
from sruserve.tracing.values import Constant, Outputs, Pooled, Rows, States, Value

_STARTS = ("hx", "c0", "hidden", "h0")


def call(stage: Stage, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Value]:
    """Return the outputs and the end states of a module; raise `Unserved`."""
    x = args[0] if args else kwargs.pop("input", kwargs.pop("x", None))
    if isinstance(x, Packed):
        raise Unserved(
            "reads a packed sequence, for padding, which the server does not have: call the module "
            "with the plain tensor if no lengths are passed"
        )
    if not isinstance(x, Rows):
        raise Unserved(f"reads {describe(x)}")
    starts = [*args[1:2], *(kwargs.pop(name, None) for name in _STARTS)]
    _check_start(starts)
    if stage.family == "lrn" and all(start is None for start in starts):
        raise Unserved("starts from a random state: pass zeros")
    if any(value is not None for value in (*args[2:], *kwargs.values())):
        raise Unserved("is called with a mask or another argument that cannot be served")
    time = ("B", "T", "F") if stage.batch_first else ("T", "B", "F")
    if x.axes != time:
        order = "(batch, steps, features)" if stage.batch_first else "(steps, batch, features)"
        raise Unserved(f"reads a tensor that is not {order}")
    if isinstance(x.origin, Pooled):
        raise Unserved("reads pooled rows")
    stages: tuple[Stage, ...] = (stage,)
    source = x
    if isinstance(x.origin, Outputs):
        if x.layers:
            raise Unserved(
                "follows another recurrent module with layers between them; only dropout may be"
            )
        stages, source = (*x.origin.stages, stage), x.origin.source
    outputs = Outputs(stages, source)
    before = outputs.depth - stage.layers
    if stage.family == "lrn":  # whatever its input's order
        time = ("T", "B", "F")
    return [Rows(outputs, time), *(_states(outputs, stage, before, kind) for kind in stage.kinds)]


def _states(outputs: Outputs, stage: Stage, before: int, kind: tuple[str, int]) -> Value:
    name, width = kind
    directions = range(stage.directions if stage.each_direction else 1)
    ends = [
        End(before + layer, name, direction, width)
        for layer in range(stage.layers)
        for direction in directions
    ]
    return States(outputs, tuple(ends), ("S", "B", "F"), len(directions))


def _check_start(starts: Any) -> None:
    """Raise `Unserved` unless start states are zeros."""
    if starts is None:
        return
    if isinstance(starts, tuple | list):
        for start in starts:
            _check_start(start)
    elif not isinstance(starts, Constant) or starts.first.any() or starts.second.any():
        raise Unserved("starts from a state that is not zero")
