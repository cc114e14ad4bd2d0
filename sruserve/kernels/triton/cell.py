"""One step of a cell in Triton, shared by the scan and the one-step kernel: the same bits in both.

Callers launch with `enable_fp_fusion=False`: a product and a sum are fused only where the source
says `tl.fma`. The `vector` tiles of `fast` steps are the exception. They let the compiler fuse,
because they do not promise equal bits.
"""

import triton
import triton.language as tl
from triton.knobs import runtime

from sruserve.kernels.cell import Activation, Kind

SRU = tl.constexpr(int(Kind.SRU))
LRN = tl.constexpr(int(Kind.LRN))
QRNN = tl.constexpr(int(Kind.QRNN))
SUM = tl.constexpr(int(Kind.SUM))
MAX = tl.constexpr(int(Kind.MAX))
DECAY = tl.constexpr(int(Kind.DECAY))
TANH = tl.constexpr(int(Activation.TANH))
RELU = tl.constexpr(int(Activation.RELU))
SELU = tl.constexpr(int(Activation.SELU))
LOG2_E = tl.constexpr(1.4426950408889634)
# The interpreter cannot run inline assembly.
_INTERPRETED = tl.constexpr(runtime.interpret)


@triton.jit
def cell_step(
    first,
    second,
    third,
    x,
    c,
    w_f,
    w_r,
    b_f,
    b_r,
    keep,
    KIND: tl.constexpr,
    BLOCKS: tl.constexpr,
    HAS_X: tl.constexpr,
    ACTIVATION: tl.constexpr,
    UPDATED_RESET: tl.constexpr,
):
    """Return h and the new state; float32 in and out, all of one shape; see `reference_scan`.

    first, second, third: the first BLOCKS planes of u. x: if HAS_X, the highway's input or LRN's
    output gate. w_f, w_r, b_f, b_r: for SRU only. keep: for QRNN only.
    """
    if KIND == SRU:
        # Five instructions lead from c to the new c; the rest of the step runs in parallel.
        f = sigmoid_of_sum(second, w_f, c, b_f)
        new = tl.fma(c - first, f, first)
        if UPDATED_RESET:
            r = sigmoid_of_sum(third, w_r, new, b_r)
        else:
            r = sigmoid_of_sum(third, w_r, c, b_r)
        return highway(activate(new, ACTIVATION), r, x, HAS_X), new
    elif KIND == LRN:
        new = tl.fma(sigmoid(second - c), c, sigmoid(first + c) * third)
        new = activate(new, ACTIVATION)
        if HAS_X:
            new *= sigmoid(x - new)
        return new, new
    elif KIND == QRNN:
        new = tl.fma(sigmoid(second) * keep, tanh(first) - c, c)
        if BLOCKS == 2:
            return new, new
        else:
            return highway(new, sigmoid(third), x, HAS_X), new
    elif KIND == SUM:
        return c + first, c + first
    elif KIND == MAX:
        new = tl.where((second != 0) & ((c > first) | (c != c)), c, first)
        return new, new
    elif KIND == DECAY:
        new = tl.fma(second, c, first)
        return new, new
    else:
        return c, first


@triton.jit
def highway(value, gate, x, HAS_X: tl.constexpr):
    if HAS_X:
        return tl.fma(value - x, gate, x)
    else:
        return value * gate


@triton.jit
def activate(c, ACTIVATION: tl.constexpr):
    if ACTIVATION == TANH:
        return tanh(c)
    elif ACTIVATION == RELU:
        return tl.where(c < 0, 0.0, c)
    elif ACTIVATION == SELU:
        below = 1.6732632423543773 * (exp2(c * LOG2_E) - 1.0)
        return 1.0507009873554805 * tl.where(c > 0, c, below)
    else:
        return c


@triton.jit
def sigmoid(x):
    return reciprocal(1.0 + exp2(x * -LOG2_E))


@triton.jit
def sigmoid_of_sum(u, w, c, b):
    """Return sigmoid(u + w * c + b). It reads c last; the compiler hoists loop-invariant terms."""
    power = tl.fma(w * -LOG2_E, c, tl.fma(u, -LOG2_E, b * -LOG2_E))
    return reciprocal(1.0 + exp2(power))


@triton.jit
def tanh(x):
    """Return tanh(x) to a relative error of 1e-6: a series where the other form would cancel."""
    square = x * x
    series = tl.fma(square, -0.006548403, 0.021276439)
    series = tl.fma(square, series, -0.053904075)
    series = tl.fma(square, series, 0.13333087)
    series = tl.fma(square, series, -0.33333332)
    series = tl.fma(square * series, x, x)
    far = 1.0 - 2.0 * reciprocal(1.0 + exp2(x * (2 * LOG2_E)))
    return tl.where(tl.abs(x) < 0.55, series, far)


@triton.jit
def exp2(x):
    """Return 2 ** x to 2 units in the last place; subnormal results are 0."""
    if _INTERPRETED:
        return tl.exp2(x)
    else:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def reciprocal(x):
    """Return 1 / x to 1 unit in the last place."""
    if _INTERPRETED:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
