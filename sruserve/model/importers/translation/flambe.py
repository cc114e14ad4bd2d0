"""`flambe.nn.TransformerSRU` (0.4.18) between embeddings and an output layer."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from sruserve.model.cells.sru import SRUConfig
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.format import Options
from sruserve.model.importers.options import CORRECT, flag, known, shown
from sruserve.model.importers.sru_stack import read_stack
from sruserve.model.importers.tensors import MISFIT, NUMBER, floats, layers_of, need
from sruserve.model.importers.translation.format import (
    ImportedSystem,
    make_system,
    without_equal,
)
from sruserve.model.translation.transformer_config import TransformerSRUConfig

_OWN = {
    "nhead",
    "bidirectional",
    "encoder_starts_decoder",
    "norm_first",
    "embedding_scale",
    "positions",
    "max_source",
    "max_target",
}
# Arguments of the library's constructors that the weights show.
_SHOWN = {
    "input_size",
    "d_model",
    "num_encoder_layers",
    "num_decoder_layers",
    "num_layers",
    "dim_feedforward",
}
_TRAINING = {"dropout", "sru_dropout"}
_SRU = {
    "use_tanh",
    "use_relu",
    "use_selu",
    "rescale",
    "has_skip_term",
    "normalize_after",
    "layer_norm",
    "n_proj",
    "projection_size",
    "highway_bias",
    "weight_norm",
    "release",
}
_MODULES = {
    "embedding": ("target_embedding.weight", "target_positions.weight"),
    "source_embedding": ("source_embedding.weight", "source_positions.weight"),
    "target_embedding": ("target_embedding.weight", "target_positions.weight"),
}


def recognises(names: Collection[str]) -> bool:
    """Whether layers of the decoder have an SRU beside their attention."""
    return any(re.fullmatch(r"decoder\.layers\.[0-9]{1,4}\.sru\.bias", name) for name in names)


def read(tensors: Mapping[str, Tensor], options: Options) -> ImportedSystem:
    """See `TranslationFormat`.

    Embeddings are `embedding`, or `source_embedding` and `target_embedding`, of torch or of the
    library; the output layer is `output`.
    """
    arguments = known(options, _OWN | _SRU, _TRAINING | _SHOWN)
    if "nhead" not in arguments:
        raise OptionError('"nhead" is not stored in a state dict: pass it in --options')
    own = _with_embeddings(floats(tensors))
    sru = {"has_skip_term": False} | {k: v for k, v in arguments.items() if k in _SRU}
    both = flag(arguments, "bidirectional", False)
    layers, kinds = {}, {}
    for side in ("encoder", "decoder"):
        layers[side], kinds[side] = _cells(
            own, side, sru | {"bidirectional": both and side[0] == "e"}
        )
    if kinds["encoder"].model_copy(update={"bidirectional": False}) != kinds["decoder"]:
        raise CheckpointError(
            "the SRU layers of encoder and decoder differ; they must have one width and the same "
            'options: a bidirectional encoder needs "bidirectional" in --options'
        )
    table = need(own, "target_embedding.weight", 2)
    shared = "source_embedding.weight" not in own or without_equal(
        own, "source_embedding.weight", "target_embedding.weight"
    )
    source_size = len(table if shared else need(own, "source_embedding.weight", 2))
    fields: dict[str, Any] = {
        "d_model": kinds["decoder"].input_size,
        "num_encoder_layers": layers["encoder"],
        "num_decoder_layers": layers["decoder"],
        "sru": kinds["decoder"],
        "bidirectional_encoder": both,
        "embedding_size": table.shape[1],
        "shared_embeddings": shared,
        "tied_output": without_equal(own, "output.weight", "target_embedding.weight"),
        "output_bias": "output.bias" in own,
        **_positions(own, arguments),
        **{k: v for k, v in arguments.items() if k in _OWN - {"bidirectional", "positions"}},
    }
    return ImportedSystem(own, make_system(TransformerSRUConfig, fields), source_size, len(table))


def _with_embeddings(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with a folder's names of the embeddings."""
    own = dict(tensors)
    for module, (table, positions) in _MODULES.items():
        for theirs, ours in (
            (f"{module}.token_embedding.weight", table),
            (f"{module}.pos_embedding.weight", positions),
            (f"{module}.weight", table),
        ):
            if theirs in own and theirs != ours:
                if ours in own:
                    raise CheckpointError(
                        f"{theirs} and another tensor are both {ours}; keep one of them"
                    )
                own[ours] = own.pop(theirs)
    if "source_embedding.weight" not in own and "target_positions.weight" in own:
        own.setdefault("source_positions.weight", own["target_positions.weight"])
    return own


def _cells(own: dict[str, Tensor], side: str, options: Options) -> tuple[int, SRUConfig]:
    """Give the SRU layers of one side a folder's names; return their number and their config."""
    pattern = rf"{side}\.layers\.{NUMBER}\.sru\."
    cells = layers_of(own, pattern)
    if not cells:
        raise CheckpointError(
            f"no {side}.layers.*.sru.* tensors: this is no Transformer + SRU: choose "
            "another --format"
        )
    for name in [name for name in own if re.match(pattern, name)]:
        del own[name]
    kinds = []
    for layer, cell in enumerate(cells):
        plain, kind = read_stack([cell], [], None, options, True)
        prefix = f"{side}.layers.{layer}.sru."
        own |= {prefix + name.removeprefix("rnn.rnn_lst.0."): t for name, t in plain.items()}
        own.setdefault(f"{prefix}scale_x", cell["bias"].new_ones(1))
        kinds.append(kind)
    if any(kind != kinds[0] for kind in kinds):
        raise CheckpointError(
            f"the SRU layers of the {side} differ; they must have the same widths: {MISFIT}"
        )
    return len(cells), kinds[0]


def _positions(own: Mapping[str, Tensor], arguments: Options) -> dict[str, Any]:
    """Return which positions there are, and how many if the weights show it."""
    stated = arguments.get("positions")
    if "target_positions.weight" in own:
        if stated not in (None, "learned"):
            raise CheckpointError(
                f"option positions is {shown(stated)}, but the weights have learned positions: "
                f"{CORRECT}"
            )
        return {
            "positions": "learned",
            "max_source": len(need(own, "source_positions.weight", 2)),
            "max_target": len(need(own, "target_positions.weight", 2)),
        }
    if stated not in ("sinusoidal", "none"):
        raise OptionError(
            '"positions" is not stored in a state dict: pass "sinusoidal" or "none" in --options'
        )
    return {"positions": stated}
