"""`torch.nn.LSTM`, `GRU` and `RNN`, alone or between an embedding and a linear layer."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from sruserve.model.cells.gated import GatedConfig, GRUConfig, LSTMConfig, RNNConfig
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.format import Imported, Options
from sruserve.model.importers.names import listed, short
from sruserve.model.importers.network import vocabulary_and_head
from sruserve.model.importers.options import agree, flag, known, make
from sruserve.model.importers.tensors import MISFIT, check_names, floats, need
from sruserve.model.names import Task

_OF_STACK = re.compile(
    r"((?:.+\.)?)((?:weight_ih|weight_hh|weight_hr|bias_ih|bias_hh)_l([0-9]{1,4})(_reverse)?)"
)
_NAMES = {"input_size", "hidden_size", "num_layers", "bias", "bidirectional"}
_TRAINING = {"batch_first", "dropout", "device", "dtype"}


def recognises(names: Collection[str]) -> bool:
    """Whether there is exactly one module's `weight_hh_l0`."""
    return len(_prefixes(names)) == 1


def read(tensors: Mapping[str, Tensor], options: Options | None, task: Task) -> Imported:
    """See `Format`. Embedding and linear layer may have any names.

    options: arguments of the modules. Only an RNN's `nonlinearity` is not in the weights.
    """
    tensors = floats(tensors)
    prefixes = _prefixes(tensors)
    if len(prefixes) != 1:
        count = f"{len(prefixes)} modules" if prefixes else "no weight_hh_l0"
        some = f" ({', '.join(sorted(map(short, prefixes))[:8])})" if prefixes else ""
        raise CheckpointError(
            f"a checkpoint of torch has one recurrent module; this has {count}{some}: the tensors "
            f"are {listed(tensors)}; save the state dict of one alone"
        )
    stack = {match[2]: t for k, t in tensors.items() if (match := _OF_STACK.fullmatch(k))}
    config = _describe(stack, options)
    check_names(stack, config.shapes().keys(), prefixes.pop())
    rest = {name: t for name, t in tensors.items() if not _OF_STACK.fullmatch(name)}
    own, vocab_size, head = vocabulary_and_head(rest, task, config)
    own |= {f"rnn.{name}": tensor for name, tensor in stack.items()}
    return Imported(own, config, vocab_size, head=head)


def _prefixes(names: Collection[str]) -> set[str]:
    """Return the name prefix of each recurrent module's tensors."""
    matches = (_OF_STACK.fullmatch(name) for name in names)
    return {match[1] for match in matches if match and match[2] == "weight_hh_l0"}


def _describe(stack: Mapping[str, Tensor], options: Options | None) -> GatedConfig:
    """Return the config; names and shapes determine it, and the number of blocks the cell."""
    rows, hidden = need(stack, "weight_hh_l0", 2).shape
    matches = [match for name in stack if (match := _OF_STACK.fullmatch(name))]
    from_weights: dict[str, Any] = {
        "input_size": need(stack, "weight_ih_l0", 2).shape[1],
        "hidden_size": hidden,
        "num_layers": max(int(match[3]) for match in matches) + 1,
        "bias": "bias_ih_l0" in stack,
        "bidirectional": any(match[4] for match in matches),
    }
    kinds: dict[int, type[GatedConfig]]
    kinds = {4 * hidden: LSTMConfig, 3 * hidden: GRUConfig, hidden: RNNConfig}
    kind = kinds.get(rows)
    if "weight_hr_l0" in stack:
        kind, from_weights["hidden_size"] = LSTMConfig, need(stack, "weight_hr_l0", 2).shape[1]
    if kind is None:
        raise CheckpointError(
            f"weight_hh_l0 has shape {[rows, hidden]}; an LSTM has 4 rows per column, a GRU 3, an "
            f"RNN 1: {MISFIT}"
        )
    names = set(_NAMES)
    if kind is LSTMConfig:
        names.add("proj_size")
        from_weights["proj_size"] = hidden if "weight_hr_l0" in stack else 0
    if kind is RNNConfig:
        names.add("nonlinearity")
    arguments = known(options, names, _TRAINING)
    for name in {"bias", "bidirectional"} & arguments.keys():
        arguments[name] = flag(arguments, name, True)
    if kind is RNNConfig and "nonlinearity" not in arguments:
        raise OptionError(
            '"nonlinearity" is not stored in a state dict: pass it in --options, "tanh" (the '
            'default of torch.nn.RNN) or "relu"'
        )
    return make(kind, agree(arguments, from_weights))
