"""Keras's layers as its documentation defines them, in float64, for one sequence."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.model.importers.keras_files import Layer

Array = NDArray[Any]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def lstm(x: Array, arrays: Sequence[Array]) -> Array:
    """Columns i, f, c, o."""
    kernel, recurrent, bias = arrays
    h = c = np.zeros(len(recurrent))
    outputs = []
    for row in x:
        i, f, g, o = np.split(row @ kernel + h @ recurrent + bias, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.array(outputs)


def gru(x: Array, arrays: Sequence[Array], reset_after: bool) -> Array:
    """Columns z, r, h; with `reset_after`, the bias has a row of its own for the state."""
    kernel, recurrent, bias = arrays
    units = len(recurrent)
    h, outputs = np.zeros(units), []
    for row in x:
        if reset_after:
            xz, xr, xh = np.split(row @ kernel + bias[0], 3)
            hz, hr, hh = np.split(h @ recurrent + bias[1], 3)
            z, r = sigmoid(xz + hz), sigmoid(xr + hr)
            n = np.tanh(xh + r * hh)
        else:
            xz, xr, xh = np.split(row @ kernel + bias, 3)
            z = sigmoid(xz + h @ recurrent[:, :units])
            r = sigmoid(xr + h @ recurrent[:, units : 2 * units])
            n = np.tanh(xh + (r * h) @ recurrent[:, 2 * units :])
        h = z * h + (1 - z) * n
        outputs.append(h)
    return np.array(outputs)


def simple_rnn(x: Array, arrays: Sequence[Array]) -> Array:
    kernel, recurrent, bias = arrays
    h, outputs = np.zeros(len(recurrent)), []
    for row in x:
        h = np.tanh(row @ kernel + h @ recurrent + bias)
        outputs.append(h)
    return np.array(outputs)


def recurrent(kind: str, config: dict[str, Any], x: Array, arrays: Sequence[Array]) -> Array:
    if kind == "LSTM":
        return lstm(x, arrays)
    if kind == "GRU":
        return gru(x, arrays, config.get("reset_after", False))
    return simple_rnn(x, arrays)


def bidirectional(layer: Layer, x: Array) -> Array:
    inner = layer.config["layer"]
    kind, config = inner["class_name"], inner["config"]
    forward = recurrent(kind, config, x, layer.arrays)
    backward = recurrent(kind, config, x[::-1], layer.backward)
    if not config["return_sequences"]:
        forward, backward = forward[-1], backward[-1]
    else:
        backward = backward[::-1]
    merge = layer.config.get("merge_mode", "concat")
    if merge == "concat":
        return np.concatenate((forward, backward), -1)
    return np.asarray((forward + backward) / (2 if merge == "ave" else 1))


def activated(name: str | None, x: Array) -> Array:
    if name == "softmax":
        e = np.exp(x - x.max(-1, keepdims=True))
        return np.asarray(e / e.sum(-1, keepdims=True))
    functions: dict[str, Any] = {
        "relu": lambda v: np.maximum(v, 0),
        "tanh": np.tanh,
        "sigmoid": sigmoid,
    }
    return x if name in (None, "linear") else np.asarray(functions[str(name)](x))


def answer(layers: Sequence[Layer], x: Array) -> Array:
    """What a Sequential model answers to ids (steps) or features (steps, width)."""
    for layer in layers:
        kind, config = layer.kind, layer.config
        arrays = [array.astype(np.float64) for array in layer.arrays]
        if kind == "Embedding":
            x = arrays[0][x]
        elif kind == "Bidirectional":
            x = bidirectional(layer, x)
        elif kind in ("LSTM", "GRU", "SimpleRNN"):
            x = recurrent(kind, config, x, arrays)
            x = x if config["return_sequences"] else x[-1]
        elif kind in ("Dense", "TimeDistributed"):
            name = (config["layer"]["config"] if "layer" in config else config).get("activation")
            x = activated(name, x @ arrays[0] + arrays[1])
        elif kind == "BatchNormalization":
            gamma, beta, mean, variance = arrays
            x = (x - mean) / np.sqrt(variance + config.get("epsilon", 1e-3)) * gamma + beta
        elif kind == "LayerNormalization":
            deviation = np.sqrt(x.var(-1, keepdims=True) + config.get("epsilon", 1e-3))
            x = (x - x.mean(-1, keepdims=True)) / deviation * arrays[0] + arrays[1]
        elif kind == "GlobalAveragePooling1D":
            x = x.mean(0)
        elif kind == "GlobalMaxPooling1D":
            x = x.max(0)
        elif kind == "Activation":
            x = activated(config["activation"], x)
    return x
