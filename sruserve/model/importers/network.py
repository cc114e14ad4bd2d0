"""The embedding and the head around a stack, by their names in training scripts."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sruserve.model.errors import CheckpointError
from sruserve.model.heads import HeadConfig
from sruserve.model.importers.tensors import matrix_of
from sruserve.model.names import Task

_MODULES = {
    "emb_layer.embedding.": "embedding.",
    "embedding_layer.embedding.": "embedding.",
    "embedding_layer.": "embedding.",
    "encoder.weight": "embedding.weight",
    "output_layer.": "output.",
    "out.": "output.",
    "decoder.": "output.",
}


def vocabulary_and_head(
    tensors: Mapping[str, Tensor], task: Task
) -> tuple[dict[str, Tensor], int | None, HeadConfig]:
    """Convert everything but the stack.

    Returns the tensors by a folder's names, the number of the embedding's rows, and the head. A
    head whose weight equals the embedding's in every number is stored as a tied one.
    """
    own: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        module = next((theirs for theirs in _MODULES if name.startswith(theirs)), None)
        new = name if module is None else _MODULES[module] + name.removeprefix(module)
        if new in own:
            raise CheckpointError(
                f"{name[:80]} and another tensor are both {new[:80]}; keep one of them"
            )
        own[new] = tensor
    table, weight = matrix_of(own, "embedding.weight"), matrix_of(own, "output.weight")
    tied = task == "generate" and table is not None and weight is not None
    if tied and (tied := torch.equal(table, weight)):  # type: ignore[arg-type]
        del own["output.weight"]
    head = HeadConfig(tied=tied, bias=weight is None or "output.bias" in own)
    if (pool := matrix_of(own, "output.pool.0.weight")) is not None:
        head = head.model_copy(update={"pooling": "attention", "latent_size": len(pool)})
    return own, None if table is None else len(table), head
