"""One step of a cell in Triton, shared by the scan and the one-step kernel: the same bits in both.

Kernels that call it are launched with `enable_fp_fusion=False`: a product and a sum are fused
where the source says `tl.fma`, and nowhere else.
"""

import triton
import triton.language as tl
from triton.knobs import runtime

LOG2_E = tl.constexpr(1.4426950408889634)
# The interpreter knows no inline assembly.
_INTERPRETED = tl.constexpr(runtime.interpret)


@triton.jit
def sru_cell(
    z,
    u_f,
    u_r,
    x,
    c,
    w_f,
    w_r,
    b_f,
    b_r,
    HAS_SKIP: tl.constexpr,
    TANH: tl.constexpr,
    UPDATED_RESET: tl.constexpr,
):
    """Returns h and the new c; float32 in and out, all of one shape; see `reference_sru_scan`.

    From c to the new c are five instructions: the rest of the step runs beside them.
    """
    f = sigmoid_of_sum(u_f, w_f, c, b_f)
    new = tl.fma(c - z, f, z)
    if UPDATED_RESET:
        r = sigmoid_of_sum(u_r, w_r, new, b_r)
    else:
        r = sigmoid_of_sum(u_r, w_r, c, b_r)
    g = new
    if TANH:
        g = tanh(new)
    if HAS_SKIP:
        h = tl.fma(g - x, r, x)
    else:
        h = g * r
    return h, new


@triton.jit
def sigmoid_of_sum(u, w, c, b):
    """sigmoid(u + w * c + b), with c needed last; what does not change in a loop leaves it."""
    power = tl.fma(w * -LOG2_E, c, tl.fma(u, -LOG2_E, b * -LOG2_E))
    return reciprocal(1.0 + exp2(power))


@triton.jit
def tanh(x):
    """To a millionth of the value: by its series where the other form would cancel."""
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
    """2 ** x to 2 units in the last place; subnormal results are 0."""
    if _INTERPRETED:
        return tl.exp2(x)
    else:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def reciprocal(x):
    """1 / x to 1 unit in the last place."""
    if _INTERPRETED:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
