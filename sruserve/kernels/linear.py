"""Linear layers: matrix products whose rows do not depend on the number of rows."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from sruserve.kernels.cpu.product import cpu_product
from sruserve.kernels.devices import CPU
from sruserve.kernels.dispatch import kernel_name, uses_triton
from sruserve.kernels.integer_linear import IntegerLinear, multiplies_integers
from sruserve.kernels.panel_weight import PanelWeight
from sruserve.kernels.quantized_weight import QuantizedWeight
from sruserve.kernels.torch_members import (
    has_bfloat16_instructions,
    has_packed_linear,
    multiplies_bfloat16,
)
from sruserve.kernels.triton.tiles import decode_tile

_PACK_ROWS = 1024  # number of rows for which oneDNN packs a weight
_PRODUCT_KERNELS = ("c-avx2", "c-avx512")  # whose products are as fast as oneDNN's, or faster
_LONE_ROW_LIMIT = 1024  # inputs up to which a single row has the same bits as in a batch


class LinearOp(Protocol):
    """Computes x @ weight.T + bias for a weight (outputs, inputs) that was packed once."""

    inputs: int
    outputs: int
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Multiply x (rows, in) into (rows, out) of `dtype`, by default the dtype of x."""
        ...

    def step(
        self, x: Tensor, index: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Multiply one row for each stream, in one step of decoding.

        x: (streams, in), or a table from which `index`, (streams) int64, picks each stream's row.

        Returns (streams, out) of `dtype`, by default the dtype of x.
        """
        ...


def make_linear(
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    device: torch.device = CPU,
    fast: bool = False,
    integer: bool = False,
) -> LinearOp:
    """Pack a weight for `device`.

    weight: (out, in), any float dtype. bias: (out) or None. dtype: dtype of inputs and outputs.
    fast: on a GPU, choose kernels by the number of rows; a row's last bits then depend on it.
    integer: multiply in integers if `dtype` and `device` allow it, and the weight is exactly that
        of a `QuantizedWeight`.
    """
    if integer and multiplies_integers(dtype, device):
        quantized = QuantizedWeight.of(weight, bias)
        if quantized is not None:
            return IntegerLinear(quantized)
    weight, bias = weight.to(device), bias if bias is None else bias.to(device)
    if uses_triton(device):
        return (FastLinear if fast else TritonLinear)(weight, bias, dtype)
    return (
        PanelLinear(weight, bias)
        if uses_panels(dtype, device)
        else PackedLinear(weight, bias, dtype)
    )


def uses_panels(dtype: torch.dtype, device: torch.device = CPU) -> bool:
    """Whether the compiled kernel multiplies, and not oneDNN."""
    return dtype is torch.float32 and kernel_name(device) in _PRODUCT_KERNELS


def padded_rows(rows: int, dtype: torch.dtype, device: torch.device = CPU) -> int:
    """Return the number of rows to which a product of `rows` rows is padded.

    oneDNN compiles a kernel for every new number of rows, which takes 0.3 ms. With few different
    numbers the kernels are compiled already. The result of a row does not depend on the padding.
    """
    if uses_triton(device) or uses_panels(dtype, device):
        return rows
    step = 1 if rows <= 8 else 8 if rows <= 64 else 16 if rows <= 256 else 64
    return -(-rows // step) * step


class _Steps:
    """Implements `step` with the call for many rows."""

    def step(
        self, x: Tensor, index: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """See `LinearOp.step`."""
        product: Tensor = self(x if index is None else x.index_select(0, index), dtype)  # type: ignore[operator]
        return product


class PanelLinear(_Steps):
    """A linear layer in float32 on the CPU, by the compiled kernel.

    packed: the weight and the bias in panels.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.outputs, self.inputs = weight.shape
        self.packed = PanelWeight.of(weight.float(), bias, 1)
        self.weight, self.bias = self.packed.panels, self.packed.bias

    def __call__(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Multiply x (rows, in) into (rows, out)."""
        product = cpu_product(x, self.packed)
        return product if dtype is None else product.to(dtype)


class PackedLinear(_Steps):
    """A linear layer on the CPU, with the weight packed for oneDNN."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.outputs, self.inputs = weight.shape
        self._wide = dtype is torch.bfloat16 and not multiplies_bfloat16()
        stored_dtype = torch.float32 if self._wide else dtype
        self.bias = None if bias is None else bias.to(dtype).to(stored_dtype).contiguous()
        self.weight = weight.to(dtype).to(stored_dtype).contiguous()
        self._packed = has_packed_linear()
        # Without 16-bit instructions oneDNN splits even a short row among threads.
        emulated = dtype is torch.bfloat16 and not has_bfloat16_instructions()
        self._in_pairs = emulated or self.inputs > _LONE_ROW_LIMIT
        if self._packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, _PACK_ROWS)

    def __call__(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Multiply x (rows, in) into (rows, out)."""
        if self._wide and x.dtype is torch.bfloat16:
            product = self(x.float()).to(x.dtype)
        elif not self._packed:
            product = F.linear(x, self.weight, self.bias)
        elif x.shape[0] == 1 and self._in_pairs:
            # oneDNN uses another kernel for such a single row; two rows cost nearly the same.
            product = self(torch.cat((x, x)))[:1]
        else:
            product = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return product if dtype is None else product.to(dtype)


class TritonLinear:
    """A linear layer on a GPU, by Triton kernels: a row has the same bits among any number."""

    fast = False

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.outputs, self.inputs = weight.shape
        self.bias = None if bias is None else bias.to(dtype).contiguous()
        self.weight = weight.to(dtype).contiguous()

    def __call__(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Multiply x (rows, in) into (rows, out), rounded to `dtype` once."""
        from sruserve.kernels.triton.linear import triton_linear

        return triton_linear(x, self.weight, self.bias, dtype=dtype)

    def step(
        self, x: Tensor, index: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """See `LinearOp.step`."""
        from sruserve.kernels.triton.linear import capability, triton_linear

        rows = len(x) if index is None else len(index)
        tile = decode_tile(rows, x.dtype, capability(x.device), self.fast)
        return triton_linear(x, self.weight, self.bias, index=index, dtype=dtype, tile=tile)


class FastLinear(TritonLinear):
    """A linear layer on a GPU, by kernels chosen by the number of rows, as are its last bits."""

    fast = True

    def __call__(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Multiply x (rows, in) into (rows, out), with torch's own library."""
        product = F.linear(x, self.weight, self.bias)
        return product if dtype is None else product.to(dtype)
