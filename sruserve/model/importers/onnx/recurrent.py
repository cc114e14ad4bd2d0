"""The nodes LSTM, GRU and RNN, with the row blocks of `torch.nn`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sruserve.model.importers.onnx.values import (
    FIXED,
    INVALID,
    Axis,
    Const,
    Flow,
    Refused,
    States,
    Value,
    axis_of,
)
from sruserve.model.importers.options import shown
from sruserve.model.importers.wiring.steps import Array, Cell, Direction, Recurrent

_SERVED = "export the network with one that is served"
_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
_BLOCKS = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}  # of ONNX: i o f c; z r h
_ACTIVATIONS = {
    "LSTM": ("sigmoid", "tanh", "tanh"),
    "GRU": ("sigmoid", "tanh"),
}
_ATTRIBUTES = {
    "activations", "direction", "hidden_size", "layout", "linear_before_reset", "input_forget",
    "clip", "activation_alpha", "activation_beta",
}  # fmt: skip


class OtherAxis(Exception):
    """The first axis of the input is the time, not the batch."""


def recurrent_node(
    kind: str, name: str, inputs: Sequence[Value | None], attributes: dict[str, Any]
) -> tuple[Value, ...]:
    """Return a node's outputs: h at every step, and the last h, and c of an LSTM.

    Raises `Refused` for what cannot be served, and `OtherAxis`.
    """
    parts = dict(zip(_INPUTS, (*inputs, *[None] * 8), strict=False))
    cell, directions = _cell(kind, attributes)
    _check_inputs(parts)
    x = parts["X"]
    if not isinstance(x, Flow):
        raise Refused("does not read the network's input")
    layout = attributes.get("layout", 0)
    time, batch = (1, 0) if layout else (0, 1)
    if len(x.axes) != 3 or x.features != 2:
        raise Refused("needs an input of three axes, the last one of features")
    if axis_of(x, "time") == batch:
        raise OtherAxis
    labels = [[label for label, _ in x.axes[axis]] for axis in (time, batch)]
    if labels[0] != ["time"] or labels[1] not in ([], ["batch"]):
        raise Refused("does not read all steps of the input in order")
    weights = [_constant(parts[key], key) for key in ("W", "R")]
    step = Recurrent(name, cell, _directions(kind, directions, weights, parts["B"], x.width))
    steps = (*x.steps, step)
    ahead: Axis = (("direction", 2),) if directions == 2 else ()
    row: Axis = (("feature", step.hidden),)
    order: list[Axis] = [x.axes[0], x.axes[1], ahead] if layout else [x.axes[0], ahead, x.axes[1]]
    outputs: list[Value] = [Flow(steps, (*order, row))]
    ends = (x.axes[batch], ahead, row) if layout else (ahead, x.axes[batch], row)
    outputs.append(States(tuple((steps, "h", i) for i in range(directions)), ends))
    if kind == "LSTM":
        outputs.append(States(tuple((steps, "c", i) for i in range(directions)), ends))
    return tuple(outputs)


def _cell(kind: str, attributes: dict[str, Any]) -> tuple[Cell, int]:
    """Return the recurrence and the number of directions."""
    for name, value in attributes.items():
        if name not in _ATTRIBUTES or (name in ("clip", "input_forget") and value):
            raise Refused(f"has the attribute {shown(name)}, which cannot be served")
    direction = _text(attributes.get("direction", "forward"))
    if direction not in ("forward", "bidirectional"):
        raise Refused(
            f"has the direction {shown(direction)}; served are forward, bidirectional", _SERVED
        )
    count = 2 if direction == "bidirectional" else 1
    own = [_text(each).lower() for each in attributes.get("activations", ())]
    if kind == "RNN":
        own = own or ["tanh"] * count
        if own not in (["tanh"] * count, ["relu"] * count):
            raise Refused(f"has the activations {shown(own)}; served are Tanh and Relu", _SERVED)
        return ("rnn_tanh" if own[0] == "tanh" else "rnn_relu"), count
    if own and own != [*_ACTIVATIONS[kind] * count]:
        raise Refused(f"has the activations {shown(own)}; served are the default ones", _SERVED)
    if kind == "LSTM":
        return "lstm", count
    return ("gru" if attributes.get("linear_before_reset", 0) else "gru_reset_before"), count


def _check_inputs(parts: dict[str, Value | None]) -> None:
    if parts["sequence_lens"] is not None:
        raise Refused(
            "has sequence_lens, lengths of padded inputs", "export the network without them"
        )
    if (peepholes := parts["P"]) is not None and not _is_zero(peepholes):
        raise Refused("has peepholes (P), which cannot be served")
    for key in ("initial_h", "initial_c"):
        start = parts[key]
        if start is not None and not _is_zero(start):
            raise Refused(
                f"has an {key} that is not 0, and the server carries the state of a stream itself",
                "export the network without initial states",
            )


def _is_zero(value: Value) -> bool:
    if not isinstance(value, Const):
        return False
    array = value.array
    # a spread number is one number in memory
    numbers = array[tuple(slice(0, 1) if s == 0 else slice(None) for s in array.strides)]
    return not numbers.any()


def _directions(
    kind: str, count: int, weights: Sequence[Array], bias: Value | None, width: int
) -> tuple[Direction, ...]:
    """Return the weights of each direction."""
    of_input, of_state = weights
    blocks = len(_BLOCKS[kind])
    hidden = of_state.shape[-1]
    rows = blocks * hidden
    biases = np.zeros((count, 2 * rows), np.float32) if bias is None else _constant(bias, "B")
    shapes = ((count, rows, width), (count, rows, hidden), (count, 2 * rows))
    for name, array, shape in zip("WRB", (of_input, of_state, biases), shapes, strict=True):
        if array.shape != shape:
            raise Refused(
                f"has a {name} of shape {list(array.shape)}; it must be {list(shape)}", INVALID
            )

    def ordered(array: Array) -> Array:
        parts = np.split(array, blocks)
        return np.concatenate([parts[i] for i in _BLOCKS[kind]])

    return tuple(
        Direction(
            ordered(of_input[i]),
            ordered(of_state[i]),
            ordered(biases[i, :rows]),
            ordered(biases[i, rows:]),
        )
        for i in range(count)
    )


def _constant(value: Value | None, name: str) -> Array:
    if not isinstance(value, Const) or value.sized or value.array.dtype.kind != "f":
        raise Refused(f"has a {name} that is not a constant of floats", FIXED)
    return value.array


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
