"""QRNN layers (Bradbury et al. 2017) of salesforce/pytorch-qrnn, bare or in a language model."""

import re
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from sruserve.model.cells.qrnn import QRNNConfig
from sruserve.model.config import Task
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.network import vocabulary_and_head
from sruserve.model.importers.options import agree, flag, known, make, shown
from sruserve.model.importers.origin import Imported, Options
from sruserve.model.importers.tensors import (
    NUMBER,
    check_names,
    floats,
    layers_of,
    need,
    rest_of,
)

_LAYER = rf"(?:[^.]+\.)*layers\.{NUMBER}\.linear\."
_TRAINING = {"bias", "batch_first", "dropout", "bidirectional", "save_prev_x", "use_cuda"}
_UNTOLD = "window, output_gate, zoneout"


def recognises(names: Collection[str]) -> bool:
    """A stack's `layers.0.linear.weight`."""
    return any(re.fullmatch(rf"{_LAYER}weight", name) for name in names)


def read(tensors: Mapping[str, Tensor], options: Options | None, task: Task) -> Imported:
    """See `Origin`. Takes the options of `QRNN` and `QRNNLayer`; one `QRNNLayer` is a stack, too.

    Between calls, its own layers know the previous input only with `save_prev_x`; ours always do.
    """
    tensors = floats(tensors)
    if tensors.keys() == {"linear.weight", "linear.bias"}:
        tensors = {f"layers.0.{name}": tensor for name, tensor in tensors.items()}
    layers = layers_of(tensors, _LAYER)
    if not layers:
        raise CheckpointError("no layers.*.linear.* tensors: this is no checkpoint of a QRNN")
    if options is None:
        raise OptionError(
            f"{_UNTOLD} are not stored in a state dict: pass them in --options FILE, a JSON object "
            "of the arguments that QRNN was made with ({} where all were its defaults)"
        )
    names = {"input_size", "hidden_size", "num_layers", "window", "output_gate", "zoneout"}
    given = known(options, names, _TRAINING)
    windows = given.pop("window", 1)
    if isinstance(windows, int):
        windows = [windows] * len(layers)
    if not isinstance(windows, list) or len(windows) != len(layers):
        raise OptionError(f"--options: window is {shown(windows)}, not 1 or 2, or a list of them")
    gate = flag(given, "output_gate", True)
    rnn, config = stack(layers, windows, gate, given.pop("zoneout", 0))
    told = {"input_size": config.input_size, "num_layers": config.num_layers}
    if isinstance(config.hidden_size, int):
        told["hidden_size"] = config.hidden_size
    agree({name: given[name] for name in told if name in given}, told)
    own, size, head = vocabulary_and_head(rest_of(tensors, _LAYER), task)
    return Imported(own | rnn, config, vocab_size=size, head=head)


def stack(
    layers: Sequence[Mapping[str, Tensor]],
    windows: Sequence[object],
    output_gate: bool,
    zoneout: object,
) -> tuple[dict[str, Tensor], QRNNConfig]:
    """The tensors and config of layers that hold `weight` (blocks * h, window * in) and `bias`."""
    tensors: dict[str, Tensor] = {}
    widths: list[int] = []
    inputs: list[int] = []
    blocks = 3 if output_gate else 2
    for i, (layer, window) in enumerate(zip(layers, windows, strict=True)):
        where = f"layers.{i}.linear."
        check_names(layer, ("weight", "bias"), where)
        weight, bias = need(layer, "weight", 2, where), need(layer, "bias", 1, where)
        if window not in (1, 2) or isinstance(window, bool):
            raise OptionError(f"--options: window is {shown(window)}; a QRNN has 1 or 2")
        if len(weight) != len(bias) or len(bias) % blocks or weight.shape[1] % int(str(window)):
            raise CheckpointError(
                f"{where}weight is {list(weight.shape)}: with window {window} and output_gate "
                f"{output_gate} it must be ({blocks} * hidden_size, {window} * input_size)"
            )
        widths.append(len(bias) // blocks)
        inputs.append(weight.shape[1] // int(str(window)))
        if i and inputs[i] != widths[i - 1]:
            raise CheckpointError(
                f"{where}weight reads {inputs[i]} numbers and the layer before gives "
                f"{widths[i - 1]}: window or output_gate in --options do not fit the weights"
            )
        tensors |= {f"rnn.{where}weight": weight, f"rnn.{where}bias": bias}
    fields = {
        "input_size": inputs[0],
        "hidden_size": widths[0] if len(set(widths)) == 1 else tuple(widths),
        "num_layers": len(layers),
        "window": windows[0] if len(set(map(str, windows))) == 1 else tuple(windows),
        "output_gate": output_gate,
        "zoneout": zoneout,
    }
    return tensors, make(QRNNConfig, fields)
