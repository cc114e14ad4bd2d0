"""Linear layers with int8 weights, whose products are summed in integers."""

import torch
from torch import Tensor

import sruserve.kernels.cpu.library as cpu
from sruserve.kernels.cpu.integer_product import integer_product
from sruserve.kernels.devices import CPU
from sruserve.kernels.dispatch import uses_triton
from sruserve.kernels.quantized_weight import QuantizedWeight


def multiplies_integers(dtype: torch.dtype, device: torch.device = CPU) -> bool:
    """Whether products with int8 weights are computed in integers, and not in floats."""
    return dtype is torch.float32 and not uses_triton(device) and cpu.available()


class IntegerLinear:
    """A linear layer in float32 on the CPU, with a weight in int8; see `integer_product`.

    packed: the weight, its scales and the bias.
    """

    def __init__(self, packed: QuantizedWeight) -> None:
        self.outputs, self.inputs = packed.outputs, packed.inputs
        self.packed = packed
        self.weight: Tensor = packed.numbers
        self.bias: Tensor | None = packed.bias

    def __call__(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Multiply x (rows, in) into (rows, out)."""
        product = integer_product(x, self.packed)
        return product if dtype is None else product.to(dtype)

    def step(
        self, x: Tensor, index: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """See `LinearOp.step`."""
        return self(x if index is None else x.index_select(0, index), dtype)
