"""QRNN layers (Bradbury et al. 2017) of salesforce/pytorch-qrnn, bare or in a language model."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from sruserve.model.cells.qrnn import QRNNConfig
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.format import Imported, Options
from sruserve.model.importers.names import wrong_format
from sruserve.model.importers.network import vocabulary_and_head
from sruserve.model.importers.options import agree, flag, known, make, shown
from sruserve.model.importers.tensors import (
    NUMBER,
    check_names,
    floats,
    layers_of,
    need,
    rest_of,
)
from sruserve.model.names import Task

_LAYER = rf"(?:[^.]+\.)*layers\.{NUMBER}\.linear\."
_TRAINING = {"bias", "batch_first", "dropout", "bidirectional", "save_prev_x", "use_cuda"}
_KNOWN = {
    "input_size",
    "hidden_size",
    "num_layers",
    "window",
    "output_gate",
    "zoneout",
    "highway",
}
_NOT_STORED = "window, output_gate, zoneout"


def recognises(names: Collection[str]) -> bool:
    """Whether there is a stack's `layers.0.linear.weight`."""
    return any(re.fullmatch(rf"{_LAYER}weight", name) for name in names)


def read(tensors: Mapping[str, Tensor], options: Options | None, task: Task) -> Imported:
    """See `Format`. A single `QRNNLayer` is a stack of one layer.

    options: arguments of `QRNN` and `QRNNLayer`; and `highway`, SRU's connection around each layer,
        which the library does not have.

    Between calls, the library's layers keep the previous input only with `save_prev_x`. The
    imported ones always do.
    """
    tensors = floats(tensors)
    if tensors.keys() == {"linear.weight", "linear.bias"}:
        tensors = {f"layers.0.{name}": tensor for name, tensor in tensors.items()}
    layers = layers_of(tensors, _LAYER)
    if not layers:
        raise wrong_format("layers.*.linear.*", "a QRNN", tensors)
    if options is None:
        raise OptionError(
            f"{_NOT_STORED} are not stored in a state dict: pass them in --options FILE, a JSON "
            "object of the arguments that QRNN was created with ({} if all had their defaults)"
        )
    arguments = known(options, _KNOWN, _TRAINING)
    windows = arguments.pop("window", 1)
    if isinstance(windows, int):
        windows = [windows] * len(layers)
    if not isinstance(windows, list) or len(windows) != len(layers):
        raise OptionError(
            f"--options: window is {shown(windows)}; it must be 1 or 2, or a list with one of them "
            f"for each of {len(layers)} layers"
        )
    gate = flag(arguments, "output_gate", True)
    highway = flag(arguments, "highway", False)
    hidden = arguments.get("hidden_size")
    rnn, config = stack(layers, windows, gate, arguments.pop("zoneout", 0), highway, hidden)
    from_weights: dict[str, Any] = {
        "input_size": config.input_size,
        "num_layers": config.num_layers,
    }
    if isinstance(config.hidden_size, int) or not isinstance(hidden, int):
        from_weights["hidden_size"] = config.hidden_size
    agree({name: arguments[name] for name in from_weights if name in arguments}, from_weights)
    own, size, head = vocabulary_and_head(rest_of(tensors, _LAYER), task, config)
    return Imported(own | rnn, config, vocab_size=size, head=head)


def stack(
    layers: Sequence[Mapping[str, Tensor]],
    windows: Sequence[object],
    output_gate: bool,
    zoneout: object,
    highway: bool = False,
    hidden_size: object = None,
) -> tuple[dict[str, Tensor], QRNNConfig]:
    """Return the tensors and config of layers of `weight` (blocks * h, window * in) and `bias`.

    windows: 1 or 2 for each layer.
    highway: the SRU paper's own baseline, with a fourth block of rows if widths differ.
    hidden_size: as in the options. One number, or one for each layer, decides whether a highway has
        three or four blocks if both fit.
    """
    matrices = [_matrix(layer, i, windows[i], output_gate) for i, layer in enumerate(layers)]
    inputs = [columns // window for (_, columns), window in matrices]
    stated_widths = hidden_size if isinstance(hidden_size, list) else [hidden_size] * len(layers)
    if len(stated_widths) != len(layers):
        raise OptionError(
            f"--options: hidden_size lists {len(stated_widths)} widths for {len(layers)} layers: "
            "list one for each"
        )
    blocks = 3 if output_gate else 2
    widths: list[int] = []
    for i, ((rows, columns), window) in enumerate(matrices):
        where = f"layers.{i}.linear."
        width = rows // blocks
        if highway:
            width = _beside_highway(
                rows, inputs[i], [*inputs[i + 1 : i + 2], stated_widths[i]][0], where
            )
        elif rows % blocks:
            raise _misshapen(where, (rows, columns), window, output_gate)
        widths.append(width)
        if i and inputs[i] != widths[i - 1]:
            raise CheckpointError(
                f"{where}weight has {inputs[i]} inputs, but the previous layer has {widths[i - 1]} "
                "outputs: correct window or output_gate in --options"
            )
    fields = {
        "input_size": inputs[0],
        "hidden_size": widths[0] if len(set(widths)) == 1 else tuple(widths),
        "num_layers": len(layers),
        "window": windows[0] if len(set(map(str, windows))) == 1 else tuple(windows),
        "output_gate": output_gate,
        "zoneout": zoneout,
        "highway": highway,
    }
    tensors = {
        f"rnn.layers.{i}.linear.{name}": tensor
        for i, layer in enumerate(layers)
        for name, tensor in layer.items()
    }
    return tensors, make(QRNNConfig, fields)


def _matrix(
    layer: Mapping[str, Tensor], index: int, window: object, output_gate: bool
) -> tuple[tuple[int, int], int]:
    """Return the shape of a layer's weight, and its window."""
    where = f"layers.{index}.linear."
    check_names(layer, ("weight", "bias"), where)
    weight, bias = need(layer, "weight", 2, where), need(layer, "bias", 1, where)
    if type(window) is not int or window not in (1, 2):
        raise OptionError(f"--options: window is {shown(window)}; it must be 1 or 2")
    rows, columns = weight.shape
    if rows != len(bias) or columns % window:
        raise _misshapen(where, (rows, columns), window, output_gate)
    return (rows, columns), window


def _beside_highway(rows: int, inputs: int, width: object, where: str) -> int:
    """Return a layer's width: it has three blocks of rows if its input has that width, else four.

    width: the width if it is known, otherwise None.
    """
    fitting = [rows // 3] if rows == 3 * inputs else []
    fitting += [rows // 4] if rows % 4 == 0 and rows // 4 != inputs else []
    if len(fitting) > 1 and width is not None:
        fitting = [each for each in fitting if each == width]
    if len(fitting) > 1:
        raise OptionError(
            f"{where}weight has {rows} rows for {inputs} inputs: with a highway, {fitting[0]} "
            f"channels or {fitting[1]}; pass hidden_size in --options"
        )
    if not fitting:
        raise CheckpointError(
            f"{where}weight has {rows} rows for {inputs} inputs: with a highway it must have 3 or "
            "4 for each channel of hidden_size: pass highway and hidden_size as QRNN was created"
        )
    return fitting[0]


def _misshapen(
    where: str, shape: tuple[int, int], window: int, output_gate: bool
) -> CheckpointError:
    blocks = 3 if output_gate else 2
    return CheckpointError(
        f"{where}weight has shape {list(shape)}; with window {window} and output_gate "
        f"{output_gate} it must be ({blocks} * hidden_size, {window} * input_size), and bias "
        f"({blocks} * hidden_size): pass window and output_gate as QRNN was created"
    )
