"""`torch.nn.LSTM`, `GRU` and `RNN`, alone or between an embedding and a linear layer."""

import re
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from sruserve.model.cells.gated import GatedConfig, GRUConfig, LSTMConfig, RNNConfig
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.heads import HeadConfig
from sruserve.model.importers.format import Imported, Options
from sruserve.model.importers.options import agree, flag, known, make
from sruserve.model.importers.tensors import check_names, floats, need
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

    Their widths, the linear layer's bias, and "emb" in the embedding's name distinguish them.

    options: arguments of the modules. Only an RNN's `nonlinearity` is not in the weights.
    """
    tensors = floats(tensors)
    prefixes = _prefixes(tensors)
    if len(prefixes) != 1:
        count = f"{len(prefixes)} modules" if prefixes else "no weight_hh_l0"
        raise CheckpointError(f"a checkpoint of torch has one recurrent module; this has {count}")
    stack = {match[2]: t for k, t in tensors.items() if (match := _OF_STACK.fullmatch(k))}
    config = _describe(stack, options)
    check_names(stack, config.shapes().keys(), prefixes.pop())
    rest = {name: t for name, t in tensors.items() if not _OF_STACK.fullmatch(name)}
    own, head = _around(rest, config, task)
    table = own.get("embedding.weight")
    own |= {f"rnn.{name}": tensor for name, tensor in stack.items()}
    return Imported(own, config, None if table is None else len(table), head=head)


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
            "RNN 1"
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


def _around(
    rest: Mapping[str, Tensor], config: GatedConfig, task: Task
) -> tuple[dict[str, Tensor], HeadConfig]:
    """Return embedding and head by a folder's names."""
    width = config.output_size
    # A classifier may read the final states of all layers, side by side.
    widths = (2 * width, 4 * width) if task == "pair" else (width, config.num_layers * width)
    matrices = {name: t for name, t in rest.items() if t.dim() == 2 and task != "encode"}
    biased = {name for name in matrices if _bias_of(name) in rest}
    named = {name for name in matrices if "emb" in name.lower()}
    fitting = [name for name, t in matrices.items() if t.shape[1] in widths]
    output = _one("output layer", fitting, biased, set(fitting) - named, rest)
    fitting = [
        name
        for name, t in matrices.items()
        if t.shape[1] == config.input_size and name != output and name not in biased
    ]
    embedding = _one("embedding", fitting, named, set(), rest)
    own: dict[str, Tensor] = {}
    tied, bias = False, None
    if embedding is not None:
        own["embedding.weight"] = rest[embedding]
    if output is not None:
        bias = rest.get(_bias_of(output))
        tied = task == "generate" and embedding is not None
        tied = tied and torch.equal(rest[output], own["embedding.weight"])
        own |= {} if tied else {"output.weight": rest[output]}
        own |= {} if bias is None else {"output.bias": bias}
    used = {embedding, output, output and _bias_of(output)}
    unused = [name for name in rest if name not in used]
    if unused:
        raise CheckpointError(
            f"{', '.join(name[:60] for name in unused[:4])}: unexpected in a network for task "
            f"{task}, which has an embedding, one recurrent module and a linear layer"
        )
    return own, HeadConfig(tied=tied, bias=output is None or bias is not None)


def _bias_of(name: str) -> str:
    return name.removesuffix("weight") + "bias"


def _one(
    what: str,
    fitting: list[str],
    first: set[str],
    second: set[str],
    tensors: Mapping[str, Tensor],
) -> str | None:
    """Return the only fitting name; if several fit, one in `first`, or else in `second`.

    Returns None if no name fits.
    """
    for preferred in (first, second):
        preferred_fits = [name for name in fitting if name in preferred]
        if len(fitting) > 1 and preferred_fits:
            fitting = preferred_fits
    if len(fitting) > 1 and not all(
        torch.equal(tensors[fitting[0]], tensors[name]) for name in fitting
    ):
        raise CheckpointError(
            f"{', '.join(name[:60] for name in fitting[:4])}: each could be the {what}; keep one, "
            'with "emb" in the name of the embedding'
        )
    return fitting[-1] if fitting else None  # equal tensors are tied, and the head is last
