"""Programmatic dependent launch: a kernel begins while the one before it in its stream ends.

Its blocks bring their part of the weight into the L2 cache, and read nothing that another kernel
writes before that kernel has ended (CUDA programming guide, "programmatic dependent launch"; from
compute capability 9.0 on).
"""

import triton
import triton.language as tl
from triton.knobs import runtime
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from sruserve.kernels.triton.tiles import LinearTile

_INTERPRETED = tl.constexpr(runtime.interpret)
_LINE = tl.constexpr(128)  # bytes that a prefetch brings


def begins_early(tile: LinearTile, capability: tuple[int, int]) -> bool:
    """Whether a kernel of a step is launched before the one that it waits for has ended."""
    return tile.early and capability[0] == 9


@triton.jit
def fetch_early(weight, rows, OUT: tl.constexpr, IN: tl.constexpr):
    """Bring rows of a weight (OUT, IN) into the L2 cache; rows past its end count as the last."""
    if not _INTERPRETED:
        BYTES: tl.constexpr = weight.dtype.element_ty.primitive_bitwidth // 8
        LINES: tl.constexpr = triton.next_power_of_2((IN * BYTES + _LINE - 1) // _LINE)
        inside = tl.minimum(tl.arange(0, LINES) * (_LINE // BYTES), IN - 1)
        place = weight + tl.minimum(rows, OUT - 1).to(tl.int64)[:, None] * IN + inside[None, :]
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l", [place.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def wait_for_launches():
    """Let the next launch begin, and wait for the end of those before this one."""
    if not _INTERPRETED:
        gdc_launch_dependents()
        gdc_wait()
