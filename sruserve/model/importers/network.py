"""The embedding and the head around a stack, under the names that training scripts give them."""

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
    """All but the stack: tensors by a folder's names, rows of the embedding, and the head.

    A head whose weight equals the embedding's, number by number, is stored and read as one.
    """
    own: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        module = next((theirs for theirs in _MODULES if name.startswith(theirs)), None)
        new = name if module is None else _MODULES[module] + name.removeprefix(module)
        if new in own:
            raise CheckpointError(f"{name[:80]} and another tensor both mean {new[:80]}")
        own[new] = tensor
    table, weight = matrix_of(own, "embedding.weight"), matrix_of(own, "output.weight")
    tied = task == "generate" and table is not None and weight is not None
    if tied and (tied := torch.equal(table, weight)):  # type: ignore[arg-type]
        del own["output.weight"]
    head = HeadConfig(tied=tied, bias=weight is None or "output.bias" in own)
    if (pool := matrix_of(own, "output.pool.0.weight")) is not None:
        head = head.model_copy(update={"pooling": "attention", "latent_size": len(pool)})
    return own, None if table is None else len(table), head
