"""The language model of salesforce/awd-lstm-lm (Merity et al. 2018), with QRNN or LSTM layers."""

import re
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from sruserve.model.cells.gated import LSTMConfig
from sruserve.model.cells.stack import StackConfig
from sruserve.model.importers.format import Imported, Options
from sruserve.model.importers.names import wrong_format
from sruserve.model.importers.network import vocabulary_and_head
from sruserve.model.importers.options import agree, known, make
from sruserve.model.importers.qrnn import stack
from sruserve.model.importers.tensors import (
    NUMBER,
    check_names,
    floats,
    layers_of,
    need,
    rest_of,
)
from sruserve.model.names import Task

_QRNN = rf"rnns\.{NUMBER}\.linear\.(?:module\.)?"
_LSTM = rf"rnns\.{NUMBER}\.(?:module\.)?(?=(?:weight|bias)_[ih]h_l0)"
_TRAINING = {"dropout", "dropouth", "dropouti", "dropoute", "wdrop", "tie_weights"}


def recognises(names: Collection[str]) -> bool:
    """Whether there is a list `rnns` of one-layer modules, with or without dropped weights."""
    own = rf"{_QRNN}weight|{_LSTM}weight_hh_l0_raw|rnns\.1\.weight_hh_l0"
    return any(re.match(own, name) for name in names)


def read(tensors: Mapping[str, Tensor], options: Options | None, task: Task) -> Imported:
    """See `Format`. Needs no options: the model fixes window 2 for its first QRNN layer."""
    tensors = floats(tensors)
    pattern = _QRNN if any(re.match(_QRNN, name) for name in tensors) else _LSTM
    layers = [_undropped(layer) for layer in layers_of(tensors, pattern)]
    if not layers:
        raise wrong_format("rnns.*.linear.* or rnns.*.weight_hh_l0", "awd-lstm-lm", tensors)
    arguments = known(options, ("rnn_type", "ntoken", "ninp", "nhid", "nlayers"), _TRAINING)
    rnn: dict[str, Tensor]
    config: StackConfig
    if pattern == _QRNN:
        rnn, config = stack(layers, [2] + [1] * (len(layers) - 1), True, 0)
    else:
        rnn, config = _lstm(layers)
    own, size, head = vocabulary_and_head(rest_of(tensors, pattern), task, config)
    from_weights = {
        "rnn_type": "QRNN" if pattern == _QRNN else "LSTM",
        "ntoken": size,
        "ninp": config.input_size,
        "nlayers": config.num_layers,
    }
    if config.num_layers > 1:  # the last layer has the embedding's width
        from_weights["nhid"] = config.layer_hidden(0)
    agree({name: arguments[name] for name in from_weights if name in arguments}, from_weights)
    return Imported(own | rnn, config, vocab_size=size, head=head)


def _undropped(layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace each `weight`, which dropout has changed, by its `weight_raw`."""
    raw = {name.removesuffix("_raw"): t for name, t in layer.items() if name.endswith("_raw")}
    return {name: t for name, t in layer.items() if not name.endswith("_raw")} | raw


def _lstm(layers: Sequence[Mapping[str, Tensor]]) -> tuple[dict[str, Tensor], StackConfig]:
    """Convert one-layer LSTMs to a stack."""
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    tensors: dict[str, Tensor] = {}
    widths = []
    for i, layer in enumerate(layers):
        check_names(layer, names, f"rnns.{i}.")
        widths.append(need(layer, "weight_hh_l0", 2, f"rnns.{i}.").shape[1])
        tensors |= {f"rnn.{name[:-1]}{i}": layer[name] for name in names}
    fields = {
        "input_size": need(layers[0], "weight_ih_l0", 2, "rnns.0.").shape[1],
        "hidden_size": widths[0] if len(set(widths)) == 1 else tuple(widths),
        "num_layers": len(layers),
    }
    return tensors, make(LSTMConfig, fields)
