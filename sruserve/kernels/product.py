"""Matrix products whose rows do not depend on how many rows there are."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from sruserve.kernels.devices import CPU
from sruserve.kernels.dispatch import uses_triton
from sruserve.kernels.tiles import decode_tile

_PACK_ROWS = 1024  # the number of rows that oneDNN lays a weight out for
_LONE_ROW_LIMIT = 1024  # up to this depth a lone row gives the bits that it gives in company


class Multiply(Protocol):
    """x @ weight.T + bias for a weight (outputs, inputs) that was laid out once."""

    inputs: int
    outputs: int
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Multiply (rows, in) into (rows, out) of `dtype`; None is the dtype of x."""
        ...

    def step(
        self, x: Tensor, index: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Multiply a row for each stream, in one step of decoding.

        x: (streams, in), or a table of which `index`, (streams) int64, picks a row for each.
        """
        ...


def make_product(
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    device: torch.device = CPU,
    fast: bool = False,
) -> Multiply:
    """The product for `device`.

    weight: (out, in), any float dtype; bias: (out) or None; dtype: of inputs and outputs.
    fast: on a GPU, kernels chosen by the number of rows, so that the bits of a row depend on it.
    """
    kind: type[Product] | type[TritonProduct] = Product
    if uses_triton(device):
        kind = FastProduct if fast else TritonProduct
    return kind(weight.to(device), bias if bias is None else bias.to(device), dtype)


def padded_rows(rows: int) -> int:
    """The number of rows that a product of `rows` rows is run with on the CPU.

    oneDNN compiles a kernel for every number of rows that it meets (a third of a millisecond each
    time); products of a few sizes meet compiled ones. Rows do not depend on how many there are.
    """
    step = 1 if rows <= 8 else 8 if rows <= 64 else 16 if rows <= 256 else 64
    return -(-rows // step) * step


def packed_products() -> bool:
    """Whether oneDNN's packed product is here; without it rows agree to 1e-5, not bit for bit."""
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class _Steps:
    """`step` by way of the whole product."""

    def step(
        self, x: Tensor, index: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """See `Multiply.step`."""
        product: Tensor = self(x if index is None else x.index_select(0, index), dtype)  # type: ignore[operator]
        return product


def multiplies_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this processor; without, such products are float32's.

    Those of two bfloat16 numbers are exact in float32, so only the bytes of the weights grow.
    """
    return not packed_products() or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Product(_Steps):
    """The product on the CPU, with the weight repacked for oneDNN."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.outputs, self.inputs = weight.shape
        self._wide = dtype is torch.bfloat16 and not multiplies_bfloat16()
        kept = torch.float32 if self._wide else dtype
        self.bias = None if bias is None else bias.to(dtype).to(kept).contiguous()
        self.weight = weight.to(dtype).to(kept).contiguous()
        self._packed = packed_products()
        # A processor without 16-bit instructions takes apart even shallow rows, by its threads.
        emulated = dtype is torch.bfloat16 and not torch.cpu._is_avx512_bf16_supported()
        self._in_pairs = emulated or self.inputs > _LONE_ROW_LIMIT
        if self._packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, _PACK_ROWS)

    def __call__(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Multiply (rows, in) into (rows, out)."""
        if self._wide and x.dtype is torch.bfloat16:
            product = self(x.float()).to(x.dtype)
        elif not self._packed:
            product = F.linear(x, self.weight, self.bias)
        elif len(x) == 1 and self._in_pairs:
            # oneDNN switches to another kernel for such a lone row; two cost mostly the same.
            product = self(torch.cat((x, x)))[:1]
        else:
            product = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return product if dtype is None else product.to(dtype)


class TritonProduct:
    """The product on a GPU, by kernels of ours: one tile for any number of rows."""

    fast = False

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.outputs, self.inputs = weight.shape
        self.bias = None if bias is None else bias.to(dtype).contiguous()
        self.weight = weight.to(dtype).contiguous()

    def __call__(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Multiply (rows, in) into (rows, out), rounded to `dtype` once."""
        from sruserve.kernels.triton_product import triton_product

        return triton_product(x, self.weight, self.bias, dtype=dtype)

    def step(
        self, x: Tensor, index: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """See `Multiply.step`."""
        from sruserve.kernels.triton_product import capability, triton_product

        rows = len(x) if index is None else len(index)
        tile = decode_tile(rows, x.dtype, capability(x.device), self.fast)
        return triton_product(x, self.weight, self.bias, index=index, dtype=dtype, tile=tile)


class FastProduct(TritonProduct):
    """The product on a GPU, by kernels that are chosen by the number of rows: its bits, too."""

    fast = True

    def __call__(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Multiply (rows, in) into (rows, out), with torch's own library."""
        product = F.linear(x, self.weight, self.bias)
        return product if dtype is None else product.to(dtype)
