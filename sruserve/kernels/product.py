"""Matrix products whose rows do not depend on how many rows there are."""

import torch
import torch.nn.functional as F
from torch import Tensor

_PACK_ROWS = 1024  # the number of rows that oneDNN lays a weight out for
_LONE_ROW_LIMIT = 1024  # up to this depth a lone row gives the bits that it gives in company


def packed_products() -> bool:
    """Whether oneDNN's packed product is here; without it rows agree to 1e-5, not bit for bit."""
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Product:
    """x @ weight.T + bias, with the weight repacked once for oneDNN.

    weight: (out, in), any float dtype; bias: (out) or None; dtype: of inputs and outputs.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.outputs, self.inputs = weight.shape
        self._bias = None if bias is None else bias.to(dtype).contiguous()
        self._weight = weight.to(dtype).contiguous()
        self._packed = packed_products()
        if self._packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(self._weight, _PACK_ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply (rows, in) into (rows, out)."""
        if not self._packed:
            return F.linear(x, self._weight, self._bias)
        if len(x) == 1 and self.inputs > _LONE_ROW_LIMIT:
            # oneDNN switches to another kernel for a deep lone row; two rows cost the same.
            return self(torch.cat((x, x)))[:1]
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._weight, self._bias, "none", [], ""
        )
        return product
