"""The LRN repository's PyTorch cells (Zhang & Sennrich 2019), bare or in its language model."""

import re
from collections.abc import Collection, Mapping

from torch import Tensor

from sruserve.model.cells.stack import StackConfig
from sruserve.model.errors import CheckpointError
from sruserve.model.heads.config import HeadConfig
from sruserve.model.importers.format import Imported, Options
from sruserve.model.importers.lrn_cells import CELLS, Kind, kind_of
from sruserve.model.importers.names import wrong_format
from sruserve.model.importers.network import vocabulary_and_head
from sruserve.model.importers.options import agree, known
from sruserve.model.importers.tensors import MISFIT, NUMBER, floats, layers_of, need, rest_of
from sruserve.model.names import Task

# An `RNN` of several cells, alone or in a model, or the language model with an `RNN` per layer.
_BARE = rf"(?:[^.]+\.)*cell_{NUMBER}\."
_MODEL = rf"rnns\.{NUMBER}\.(?:module\.)?cell_0\."
_TRAINING = {
    "batch_first",
    "dropout",
    "dropouth",
    "dropouti",
    "dropoute",
    "wdrop",
    "ldropout",
    "tie_weights",
}


def recognises(names: Collection[str]) -> bool:
    """Whether there are cells whose weights are called `_W`."""
    return any(re.fullmatch(r"([^.]+\.)*cell_[0-9]{1,4}\._W", name) for name in names)


def read(tensors: Mapping[str, Tensor], options: Options | None, task: Task) -> Imported:
    """See `Format`. Options are optional: tensors determine the sizes and the kind of cell.

    Two options are not the repository's own: `activation`, "identity" for an LRN or ATR without
    the tanh of the repository's cells; and `output_gate`, true for an LRN whose `_W` has a fourth
    block, the gate of oLRN.
    """
    tensors = floats(tensors)
    pattern = _MODEL if any(re.match(_MODEL, name) for name in tensors) else _BARE
    layers = layers_of(tensors, pattern)
    if not layers:
        raise wrong_format("cell_0.*", "the LRN repository", tensors)
    kinds = {kind_of(layer) for layer in layers}
    if len(kinds) > 1:
        raise CheckpointError(
            f"layers of {len(kinds)} kinds ({', '.join(sorted(kinds))}) cannot be one stack: "
            "import a checkpoint with one cell type"
        )
    kind = kinds.pop()
    names = {"cell_type", "rnn_type", "input_size", "hidden_size", "num_layers", *_SIZES}
    arguments = known(options, names | _OURS.get(kind, set()), _TRAINING)
    rnn, config = CELLS[kind](layers, arguments)
    others = rest_of(tensors, pattern)
    head = HeadConfig()
    if "prior.weight" in others:
        own, size, head = _mixture(others, task, config)
    else:
        own, size, head = vocabulary_and_head(others, task, config)
    _check(arguments, kind, config, head.experts, size)
    return Imported(own | rnn, config, vocab_size=size, head=head)


_OURS: dict[Kind, set[str]] = {"lrn": {"activation", "output_gate"}, "atr": {"activation"}}
_SIZES = ("ntoken", "ninp", "nhid", "nhidlast", "nlayers", "n_experts")


def _mixture(
    tensors: Mapping[str, Tensor], task: Task, rnn: StackConfig
) -> tuple[dict[str, Tensor], int | None, HeadConfig]:
    """Convert the language model around the cells, a mixture of softmaxes (Yang et al. 2018)."""
    renamed = {
        "prior.weight": "output.prior.weight",
        "latent.0.weight": "output.latent.weight",
        "latent.0.bias": "output.latent.bias",
    }
    own, size, head = vocabulary_and_head(
        {renamed.get(name, name): tensor for name, tensor in tensors.items()}, task, rnn
    )
    experts = len(need(own, "output.prior.weight", 2))
    latent, extra = divmod(len(need(own, "output.latent.weight", 2)), experts)
    if extra or not latent:
        raise CheckpointError(
            f"latent.0.weight must have a multiple of {experts} rows, one share for each expert: "
            f"{MISFIT}"
        )
    return own, size, head.model_copy(update={"experts": experts, "latent_size": latent})


def _check(
    arguments: Options, kind: Kind, config: StackConfig, experts: int, size: int | None
) -> None:
    """Raise `CheckpointError` where an option contradicts the weights."""
    from_weights = {
        "cell_type": kind,
        "rnn_type": kind,
        "input_size": config.input_size,
        "hidden_size": config.hidden_size,
        "num_layers": config.num_layers,
        "nlayers": config.num_layers,
        "ninp": config.input_size,
        "nhid": config.layer_hidden(0),
        "nhidlast": config.layer_hidden(config.num_layers - 1),
        "n_experts": experts,
        "ntoken": size,
    }
    agree(arguments, {name: value for name, value in from_weights.items() if name in arguments})
