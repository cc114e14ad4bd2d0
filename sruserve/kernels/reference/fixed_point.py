"""Products summed in fixed point, as the steps that add to the next layer's projection do it."""

import torch
from torch import Tensor

FRACTION_BITS = 32
_RANGE = 2.0**30  # int64 has a sign and 31 bits beside the fraction; one is for rounded products


def fixed_product(h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Compute h @ weight.T from products that are integers, so that their order means nothing.

    h: (rows, in), float32, bfloat16 or float16. weight: (out, in), the dtype of h.

    A product is rounded to float32, which is exact for 16 bits, and cut to 2^-32: the error of a
    sum is below `in` * 2^-32, and for float32 the rounding of its products.

    Returns sums (rows, out), int64, and how many numbers of each row of h, (rows) int64, are NaN or
    not below `fixed_limit`. They count as 0.
    """
    fits = h.float().abs() < fixed_limit(weight)
    scaled = h.float().where(fits, 0.0) * 2.0**FRACTION_BITS
    sums = (scaled.unsqueeze(1) * weight.float()).to(torch.int64).sum(2)
    return sums, (~fits).sum(1)


def from_fixed(sums: Tensor, misfits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return sums (rows, out) of `fixed_product` in `dtype`; NaN in rows that have misfits."""
    numbers = sums.to(torch.float32) * 2.0**-FRACTION_BITS
    return numbers.where((misfits == 0).unsqueeze(1), torch.nan).to(dtype)


def fixed_limit(weight: Tensor) -> float:
    """Return the size below which numbers times a weight (out, in) have sums that int64 holds."""
    largest = float(weight.float().abs().max())
    return _RANGE / (1 << (weight.shape[1] - 1).bit_length()) / max(largest, 2.0**-64)
