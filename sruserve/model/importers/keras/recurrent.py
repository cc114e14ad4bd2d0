"""Keras's LSTM, GRU, SimpleRNN and Bidirectional, with the row blocks of `torch.nn`."""

import numpy as np

from sruserve.model.importers.keras.activations import function_name
from sruserve.model.importers.keras.advice import AGAIN
from sruserve.model.importers.keras.file import Weights
from sruserve.model.importers.keras.graph import Layer
from sruserve.model.importers.options import shown
from sruserve.model.importers.wiring.network import End
from sruserve.model.importers.wiring.steps import (
    Array,
    Cell,
    Direction,
    Recurrent,
    Step,
    linear,
    pool,
)

_FORWARD = "save a model without go_backwards"
_SERVED = "save a model with what is served"
RECURRENT = ("LSTM", "GRU", "SimpleRNN")
_BLOCKS: dict[Cell, int] = {
    "lstm": 4, "gru": 3, "gru_reset_before": 3, "rnn_tanh": 1, "rnn_relu": 1
}  # fmt: skip


def recurrent_steps(layer: Layer, weights: Weights, number: int) -> list[Step]:
    """Return the steps of one direction. number: recurrent layers before this one."""
    del number
    if layer.config.get("go_backwards"):
        raise layer.refuse("runs backward in time (go_backwards), which cannot be served", _FORWARD)
    step = Recurrent(layer.name, _cell(layer), (_direction(layer, weights, "cell"),))
    if layer.config.get("return_sequences"):
        return [step]
    return [step, pool(layer.name, "last")]


def bidirectional_steps(layer: Layer, weights: Weights, number: int) -> list[Step]:
    """Return the steps of both directions. number: recurrent layers before this one."""
    forward = layer.wrapped("layer")
    has_backward = layer.config.get("backward_layer") is not None
    backward = layer.wrapped("backward_layer") if has_backward else forward
    cells = [_cell(each) for each in (forward, backward)]
    units = [each.config.get("units") for each in (forward, backward)]
    if forward.config.get("go_backwards"):
        raise layer.refuse("runs its forward layer backward (go_backwards)", _FORWARD)
    if has_backward and not backward.config.get("go_backwards"):
        raise layer.refuse(
            "runs its backward layer forward", "save a model whose backward_layer has go_backwards"
        )
    sequences = [bool(each.config.get("return_sequences")) for each in (forward, backward)]
    if cells[0] != cells[1] or units[0] != units[1] or sequences[0] != sequences[1]:
        raise layer.refuse(
            "has two different directions", "save a model whose two directions are alike"
        )
    directions = (
        _direction(forward, weights, "forward_layer/cell"),
        _direction(backward, weights, "backward_layer/cell"),
    )
    steps: list[Step] = [Recurrent(layer.name, cells[0], directions)]
    hidden = len(directions[0].weight_hh[0])
    if not sequences[0]:
        ends = (End(number, "h", 0, hidden), End(number, "h", 1, hidden))
        steps.append(pool(layer.name, "final", ends))
    merge = layer.config.get("merge_mode", "concat")
    if merge in ("sum", "ave"):
        both = np.concatenate((np.eye(hidden), np.eye(hidden)), 1)
        steps.append(linear(layer.name, both if merge == "sum" else both / 2, None))
    elif merge != "concat":
        raise layer.refuse(
            f"has the merge_mode {shown(merge)}; served are concat, sum and ave", _SERVED
        )
    return steps


def _cell(layer: Layer) -> Cell:
    """Return the recurrence, or raise `CheckpointError` for functions that cannot be served."""
    config = layer.config
    if layer.kind not in RECURRENT:
        raise layer.refuse(f"is not one of {', '.join(RECURRENT)}")
    for name in ("time_major", "return_state"):
        if config.get(name):
            raise layer.refuse(f"has {name}, which cannot be served")
    function = function_name(layer, "activation", "tanh")
    if layer.kind == "SimpleRNN":
        if function not in ("tanh", "relu"):
            raise layer.refuse(
                f"has the activation {shown(function)}; served are tanh and relu", _SERVED
            )
        return "rnn_tanh" if function == "tanh" else "rnn_relu"
    gates = function_name(layer, "recurrent_activation", "sigmoid")
    if (function, gates) != ("tanh", "sigmoid"):
        raise layer.refuse(
            f"has the activation {shown(function)} and the recurrent_activation {shown(gates)}; "
            "served are tanh and sigmoid",
            _SERVED,
        )
    if layer.kind == "LSTM":
        return "lstm"
    # Keras 1 and the early Keras 2 had no reset_after.
    return "gru" if config.get("reset_after", False) else "gru_reset_before"


def _direction(layer: Layer, weights: Weights, part: str) -> Direction:
    """Return one direction's weights; Keras keeps them transposed, a GRU's blocks as z, r, h."""
    cell = _cell(layer)
    biased = bool(layer.config.get("use_bias", True))
    names = ["kernel", "recurrent_kernel", *(["bias"] if biased else [])]
    arrays = weights.of(layer.name, layer.key, part, names)
    kernel, recurrent = arrays["kernel"], arrays["recurrent_kernel"]
    units, rows = len(recurrent), _BLOCKS[cell] * len(recurrent)
    biases = arrays.get("bias", np.zeros(rows, np.float32))
    shapes_fit = kernel.ndim == recurrent.ndim == 2 and recurrent.shape == (units, rows)
    if not shapes_fit or kernel.shape[1] != rows or units != layer.config.get("units"):
        raise layer.refuse(
            f"has a kernel of shape {list(kernel.shape)} and a recurrent_kernel of shape "
            f"{list(recurrent.shape)}, which do not fit its units",
            AGAIN,
        )
    both = (2, rows) if cell == "gru" and biased else (rows,)
    if biases.shape != both:
        raise layer.refuse(f"has a bias of shape {list(biases.shape)}, not {list(both)}", AGAIN)
    of_input, of_state = biases if biases.ndim == 2 else (biases, np.zeros_like(biases))

    def blocks(array: Array) -> Array:
        if _BLOCKS[cell] != 3:
            return array
        z, r, h = np.split(array, 3)
        return np.concatenate((r, z, h))

    return Direction(blocks(kernel.T), blocks(recurrent.T), blocks(of_input), blocks(of_state))
