"""Layers with plain weights: what an export reads instead of packed ones."""

import torch
import torch.nn.functional as F
from torch import Tensor

from sruserve.kernels import LinearOp
from sruserve.kernels.devices import CPU
from sruserve.model.cells.stack import Builder


class PlainLinear:
    """A linear layer as it was trained: weight (out, in) and bias (out) or None, float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.outputs, self.inputs = weight.shape
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """See `LinearOp`."""
        product = F.linear(x, self.weight, self.bias)
        return product if dtype is None else product.to(dtype)

    def step(
        self, x: Tensor, index: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """See `LinearOp`."""
        return self(x if index is None else x.index_select(0, index), dtype)


class PlainBuilder(Builder):
    """Builds the layers of a model in float32 on the CPU, with plain weights."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(torch.float32, CPU)

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> LinearOp:
        """Keep a weight (out, in) and a bias (out) as they are."""
        return PlainLinear(self.exact(weight), None if bias is None else self.exact(bias))


def plain(linear: object) -> PlainLinear:
    """Return a layer that `PlainBuilder` built, as what it is."""
    assert isinstance(linear, PlainLinear)
    return linear
