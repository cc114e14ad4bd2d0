"""Norms on a GPU, one program a row: no other row, and no number of rows, changes a bit."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sruserve.kernels.triton.linear import check_memory
from sruserve.kernels.triton.tiles import norm_warps

LAYER, STD, RMS = tl.constexpr(0), tl.constexpr(2), tl.constexpr(3)  # as in `NormKind`


def triton_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, kind: int, epsilon: float
) -> Tensor:
    """Normalize every row of x (rows, n): float32, bfloat16 or float16; n is at most `NORM_WIDTH`.

    weight, bias: (n), any of those dtypes. kind: LAYER, STD or RMS of `NormKind`. epsilon: see
        `Norm`.

    Sums are float32. Returns (rows, n), the dtype of x. Raises ValueError for tensors that do not
    fit.
    """
    rows, n = x.shape
    if weight.shape != (n,) or (bias is not None and bias.shape != (n,)):
        raise ValueError(f"weight and bias must have shape ({n},), not {tuple(weight.shape)}")
    x = x.contiguous()
    check_memory(x.device, weight=weight, bias=bias)
    out = torch.empty_like(x)
    if not rows:
        return out
    block = triton.next_power_of_2(n)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        norm_kernel[(rows,)](
            x,
            weight,
            bias,
            out,
            epsilon,
            N=n,
            BLOCK=block,
            KIND=kind,
            num_warps=norm_warps(block),
            enable_fp_fusion=False,
        )
    return out


@triton.jit(do_not_specialize=["epsilon"])
def norm_kernel(
    x,
    weight,
    bias,
    out,
    epsilon,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
):
    """Normalize one row, which the program's threads hold as a whole."""
    place = tl.arange(0, BLOCK)
    inside = place < N
    first = tl.program_id(0).to(tl.int64) * N
    row = tl.load(x + first + place, inside, 0.0).to(tl.float32)
    if KIND != RMS:
        row = tl.where(inside, row - tl.sum(row, 0) / N, 0.0)
    spread = tl.sum(row * row, 0) / N
    if KIND == STD:
        row = row / (tl.sqrt_rn(spread) + epsilon)
    else:
        row = row / tl.sqrt_rn(spread + epsilon)
    row *= tl.load(weight + place, inside, 0.0).to(tl.float32)
    if bias is not None:
        row += tl.load(bias + place, inside, 0.0).to(tl.float32)
    tl.store(out + first + place, row.to(out.dtype.element_ty), inside)
