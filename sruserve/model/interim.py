"""Plain embedding and head, until the real ones land."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sruserve.kernels import Multiply, padded_rows, uses_triton
from sruserve.model.cells.stack import Builder


class Embedding:
    def __init__(self, table: Tensor) -> None:
        self.table: Tensor | None = table

    def __call__(self, ids: Tensor) -> Tensor:
        assert self.table is not None
        return self.table.index_select(0, ids)


class Head:
    def __init__(self, product: Multiply, device: torch.device) -> None:
        self.product: Multiply | None = product
        self._device = device

    def __call__(self, hidden: Tensor) -> Tensor:
        assert self.product is not None
        if uses_triton(self._device):
            return self.product(hidden, torch.float32)
        rows = padded_rows(len(hidden))
        return self.product(F.pad(hidden, (0, 0, 0, rows - len(hidden))))[: len(hidden)].float()

    def log_probs(self, scores: Tensor) -> Tensor:
        return scores.log_softmax(1)

    def compare(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        raise NotImplementedError


def make_embedding(tensors: Mapping[str, Tensor], builder: Builder) -> Embedding:
    return Embedding(builder.put(tensors["embedding.weight"]))


def make_head(tensors: Mapping[str, Tensor], builder: Builder) -> Head:
    return Head(builder.product(tensors["output.weight"], tensors["output.bias"]), builder.device)
