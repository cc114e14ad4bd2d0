"""The adaptive embedding and softmax of the SRU++ experiments on wikitext-103 and lm1b."""

from collections.abc import Collection, Mapping
from itertools import accumulate
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from sruserve.model.cells.srupp import SRUppConfig
from sruserve.model.config import explain
from sruserve.model.embeddings import EmbeddingConfig
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.heads.config import HeadConfig
from sruserve.model.importers.options import flag, shown
from sruserve.model.importers.tensors import MISFIT, layers_of, need, rest_of

_LAYERS = r"output_layer\.out_layers\.([0-9]{1,2})\."
_LISTS = {
    "output.{}.proj": r"output_layer\.out_projs\.([0-9]{1,2})\Z",
    "embedding.{}.proj": r"embedding_layer\.emb_projs\.([0-9]{1,2})\Z",
    "embedding.{}.weight": r"embedding_layer\.emb_weights\.([0-9]{1,2})\Z",
}


def is_adaptive(names: Collection[str]) -> bool:
    """Whether tensors of these names hold an adaptive softmax."""
    return any(name.startswith("output_layer.out_layers.") for name in names)


def adaptive(
    tensors: Mapping[str, Tensor], arguments: Mapping[str, Any], rnn: SRUppConfig
) -> tuple[dict[str, Tensor], int, EmbeddingConfig, HeadConfig]:
    """Convert everything but the stack.

    Returns the tensors by a folder's names, the size of the vocabulary, and both configs. Embedding
    and softmax share the words' rows. The model of wikitext-103 shares the projections, too, which
    its state dict then holds twice.
    """
    clusters = layers_of(tensors, _LAYERS)
    own = {
        f"output.{i}.{name}": tensor
        for i, cluster in enumerate(clusters)
        for name, tensor in cluster.items()
    }
    rest = rest_of(tensors, _LAYERS)
    for ours, theirs in _LISTS.items():
        own |= {ours.format(i): each[""] for i, each in enumerate(layers_of(rest, theirs))}
        rest = rest_of(rest, theirs)
    own |= rest  # the check of names refuses them
    shapes = [need(own, f"output.{i}.weight", 2).shape for i in range(len(clusters))]
    words = [rows for rows, _ in shapes]
    words[0] -= len(clusters) - 1  # the rows that stand for the other clusters
    ends = list(accumulate(words))
    widths = [width for _, width in shapes]
    divide = max(1, widths[0] // widths[1]) if len(widths) > 1 else 1
    if min(words) < 1 or widths != [widths[0] // divide**i for i in range(len(widths))]:
        raise CheckpointError(
            f"output_layer.out_layers have shapes {shown([*map(list, shapes)])}, which are not "
            f"those of an adaptive softmax: {MISFIT}"
        )
    shared: dict[str, Any] = {"cutoffs": tuple(ends[:-1]), "size": widths[0], "divide": divide}
    scale = _scale(arguments, rnn)
    try:
        embedding = EmbeddingConfig(scale=scale, **shared)
        head = HeadConfig(tied="embedding.0.weight" not in own, **shared)
    except ValidationError as error:
        raise CheckpointError(f"output_layer.out_layers: {explain(error)}") from error
    return own, ends[-1], embedding, head


def _scale(arguments: Mapping[str, Any], rnn: SRUppConfig) -> float:
    """Return the factor on an embedding's rows: sqrt(n_d) in models trained without --layer_norm.

    The script passes --layer_norm to SRUpp. Depending on the release it adds a norm of each layer's
    input (dev5, dev6), the norm of the attention (dev1, dev2), or nothing.
    """
    if "scale_emb" in arguments:
        scaled = flag(arguments, "scale_emb", True)
    elif rnn.layer_norm or not rnn.attn_layer_norm:
        scaled = not rnn.layer_norm
    elif "layer_norm" in arguments:
        scaled = not flag(arguments, "layer_norm", False)
    else:
        raise OptionError(
            "layer_norm is not stored in a state dict, and the embedding is scaled if it is false: "
            "pass layer_norm in --options, whether the model was trained with --layer_norm"
        )
    return float(rnn.input_size**0.5) if scaled else 1.0
