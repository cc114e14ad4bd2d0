"""One step of an SRU layer for many streams on a GPU: product and gates in one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sruserve.kernels.tiles import ProductTile, loadable, step_tile
from sruserve.kernels.triton_cell import sru_cell
from sruserve.kernels.triton_product import (
    add_dots,
    add_product,
    capability,
    check_memory,
    check_product,
    load_row,
    load_tile,
    picked,
    within,
)


def triton_sru_step(
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    weight_c: Tensor,
    bias: Tensor,
    states: Tensor,
    source: Tensor,
    target: Tensor,
    column: int,
    *,
    x_index: Tensor | None = None,
    residual_index: Tensor | None = None,
    scale: float = 1.0,
    tanh: bool = False,
    updated_reset: bool = False,
    out: Tensor | None = None,
    tile: ProductTile | None = None,
) -> Tensor:
    """One step of `rows` streams: u = x[x_index] @ weight.T, then the recurrence on it.

    x: (rows, in), or any number of rows with an `x_index`; float32, bfloat16 or float16.
    weight: (3 * width, in) or (4 * width, in), the dtype of x, in the planes of
        `reference_sru_scan`: candidate, forget, reset, and with 4 the highway input.
    residual: (rows, width), or any number of rows with a `residual_index`, the dtype of x: the
        highway input with 3 planes; None with 4, or where the layer has no skip term.
    weight_c, bias: (2, width), float32: forget, reset.
    states: (pool, state width), float32: c is in columns `column` to `column + width`.
    source, target: (rows), int64: the rows of `states` that c is read from (-1: zeros) and
        written to (-1: dropped); they may be equal, but no two streams may share one.
    x_index, residual_index: (rows), int64: which rows of x and of residual, unchecked.
    scale, tanh, updated_reset: as for `reference_sru_scan`.
    out: (rows, width), the dtype of x: where h goes; None allocates it.
    tile: how the work is cut; None takes the one whose bits are those of `triton_product`
        followed by `triton_sru_scan`.

    Returns h, (rows, width), the dtype of x. Everything contiguous and on one device. Raises
    ValueError, before anything is written, for tensors that do not fit.
    """
    rows = x.shape[0] if x_index is None else x_index.shape[0]
    width = weight_c.shape[-1]
    outputs, inputs = check_product(x, weight, x_index)
    blocks = 4 if outputs == 4 * width else 3
    if not width or outputs != blocks * width:
        raise ValueError(f"weight must have 3 or 4 times {width} rows, not {outputs}")
    if not (weight_c.shape == bias.shape == (2, width)):
        raise ValueError(f"weight_c and bias must have shape (2, {width})")
    if not (weight_c.dtype is bias.dtype is states.dtype is torch.float32):
        raise ValueError("weight_c, bias and states must be float32")
    if states.dim() != 2 or not 0 <= column <= states.shape[1] - width:
        raise ValueError(f"column {column} and {width} more are not in states' rows")
    for name, rows_of in (("source", source), ("target", target)):
        if rows_of.shape != (rows,) or rows_of.dtype is not torch.int64:
            raise ValueError(f"{name} must be ({rows},) of int64")
    if residual is not None:
        _check_residual(residual, residual_index, blocks, rows, width, x.dtype)
    elif residual_index is not None:
        raise ValueError("a residual_index without a residual")
    if out is None:
        out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    elif out.shape != (rows, width) or out.dtype is not x.dtype:
        raise ValueError(f"out must be {(rows, width)} of {x.dtype}")
    check_memory(
        x.device,
        weight=weight,
        residual=residual,
        weight_c=weight_c,
        bias=bias,
        states=states,
        source=source,
        target=target,
        x_index=x_index,
        residual_index=residual_index,
        out=out,
    )
    if tile is None:
        tile = step_tile(rows, x.dtype, capability(x.device))
    tile = loadable(tile, inputs, x.dtype)
    if not rows:
        return out
    depth = min(tile.depth, triton.next_power_of_2(inputs)) if tile.vector else tile.depth
    with torch.cuda.device_of(x):  # Triton launches on the current device
        step_kernel[(-(-width // tile.columns), -(-rows // tile.rows))](
            x,
            x_index,
            weight,
            residual,
            residual_index,
            weight_c,
            bias,
            states,
            source,
            target,
            out,
            rows,
            states.shape[1],
            column,
            float(scale),
            IN=inputs,
            WIDTH=width,
            BLOCKS=blocks,
            TANH=tanh,
            UPDATED_RESET=updated_reset,
            ROWS=tile.rows,
            CHANNELS=tile.columns,
            DEPTH=depth,
            VECTOR=tile.vector,
            num_warps=tile.warps,
            num_stages=tile.stages,
            enable_fp_fusion=tile.vector,
        )
    return out


def _check_residual(
    residual: Tensor,
    index: Tensor | None,
    blocks: int,
    rows: int,
    width: int,
    dtype: torch.dtype,
) -> None:
    if blocks == 4:
        raise ValueError("a weight of 4 planes computes its own highway input; pass no residual")
    if residual.dim() != 2 or residual.shape[1] != width or residual.dtype is not dtype:
        raise ValueError(f"residual must be {(rows, width)} of {dtype}")
    if index is None and residual.shape[0] != rows:
        raise ValueError(f"residual must have {rows} rows, not {residual.shape[0]}")
    if index is not None and (index.shape != (rows,) or index.dtype is not torch.int64):
        raise ValueError(f"residual_index must be ({rows},) of int64")


@triton.jit(do_not_specialize=["rows", "state_width", "column", "scale"])
def step_kernel(
    x,
    x_index,
    weight,
    residual,
    residual_index,
    weight_c,
    bias,
    states,
    source,
    target,
    out,
    rows,
    state_width,
    column,
    scale,
    IN: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCKS: tl.constexpr,
    TANH: tl.constexpr,
    UPDATED_RESET: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    DEPTH: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """ROWS streams by CHANNELS channels, with every gate of theirs.

    VECTOR: a few rows, one by one, while every plane of the weight is in flight at once.
    """
    first = tl.program_id(1) * ROWS
    row = first + tl.arange(0, ROWS)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    row_mask = row < rows
    mask = within(channel, WIDTH, CHANNELS)
    # Asked for first, so that they are here when the product is; if registers can hold them.
    EARLY: tl.constexpr = not VECTOR and BLOCKS * ROWS * CHANNELS <= 3 * 128 * 64
    if EARLY:
        c = load_state(states, source, row, row_mask, channel, mask, state_width, column)
        skip = load_skip(residual, residual_index, row, row_mask, channel, mask, WIDTH)
    x_row = picked(x_index, row, row_mask)
    z = tl.zeros([ROWS, CHANNELS], tl.float32)
    u_f = tl.zeros([ROWS, CHANNELS], tl.float32)
    u_r = tl.zeros([ROWS, CHANNELS], tl.float32)
    u_x = tl.zeros([ROWS, CHANNELS], tl.float32)
    for k in range(0, IN, DEPTH):
        right_z = load_tile(weight, channel, mask, k, IN, DEPTH)
        right_f = load_tile(weight, WIDTH + channel, mask, k, IN, DEPTH)
        right_r = load_tile(weight, 2 * WIDTH + channel, mask, k, IN, DEPTH)
        right_x = right_z
        if BLOCKS == 4:
            right_x = load_tile(weight, 3 * WIDTH + channel, mask, k, IN, DEPTH)
        if VECTOR:
            for place in tl.static_range(ROWS):
                left = load_row(x, x_index, first + place, rows, k, IN, DEPTH)
                z = add_dots(z, place, left, right_z)
                u_f = add_dots(u_f, place, left, right_f)
                u_r = add_dots(u_r, place, left, right_r)
                if BLOCKS == 4:
                    u_x = add_dots(u_x, place, left, right_x)
        else:
            left = load_tile(x, x_row, row_mask, k, IN, DEPTH)
            z = add_product(z, left, right_z)
            u_f = add_product(u_f, left, right_f)
            u_r = add_product(u_r, left, right_r)
            if BLOCKS == 4:
                u_x = add_product(u_x, left, right_x)
    if not EARLY:
        c = load_state(states, source, row, row_mask, channel, mask, state_width, column)
        skip = load_skip(residual, residual_index, row, row_mask, channel, mask, WIDTH)
    finish(
        z, u_f, u_r, u_x, c, skip, residual, weight_c, bias, states, target, out,
        row, row_mask, channel, mask, state_width, column, scale,
        WIDTH, BLOCKS, TANH, UPDATED_RESET,
    )  # fmt: skip


@triton.jit
def load_state(states, source, row, row_mask, channel, mask, state_width, column):
    """The c of some streams, (rows, channels); zeros for a stream that begins."""
    start = tl.load(source + row, row_mask, -1)
    place = states + start[:, None] * state_width + column + channel[None, :]
    return tl.load(place, (start >= 0)[:, None] & mask[None, :], 0.0)


@triton.jit
def load_skip(residual, index, row, row_mask, channel, mask, WIDTH: tl.constexpr):
    if residual is None:
        return tl.zeros([row.shape[0], channel.shape[0]], tl.float32)
    else:
        place = residual + picked(index, row, row_mask)[:, None] * WIDTH + channel[None, :]
        return tl.load(place, row_mask[:, None] & mask[None, :], 0.0)


@triton.jit
def finish(
    z,
    u_f,
    u_r,
    u_x,
    c,
    skip,
    residual,
    weight_c,
    bias,
    states,
    target,
    out,
    row,
    row_mask,
    channel,
    mask,
    state_width,
    column,
    scale,
    WIDTH: tl.constexpr,
    BLOCKS: tl.constexpr,
    TANH: tl.constexpr,
    UPDATED_RESET: tl.constexpr,
):
    """The gates, from products rounded as the scan finds them; c and h go to memory."""
    w_f = tl.load(weight_c + channel, mask, 0.0)[None, :]
    w_r = tl.load(weight_c + WIDTH + channel, mask, 0.0)[None, :]
    b_f = tl.load(bias + channel, mask, 0.0)[None, :]
    b_r = tl.load(bias + WIDTH + channel, mask, 0.0)[None, :]
    dtype: tl.constexpr = out.dtype.element_ty
    if BLOCKS == 4:
        skip = u_x.to(dtype).to(tl.float32)
    else:
        skip = skip.to(tl.float32) * scale
    h, c = sru_cell(
        z.to(dtype).to(tl.float32),
        u_f.to(dtype).to(tl.float32),
        u_r.to(dtype).to(tl.float32),
        skip,
        c,
        w_f,
        w_r,
        b_f,
        b_r,
        BLOCKS == 4 or residual is not None,
        TANH,
        UPDATED_RESET,
    )
    tl.store(
        out + row.to(tl.int64)[:, None] * WIDTH + channel[None, :],
        h.to(dtype),
        row_mask[:, None] & mask[None, :],
    )
    end = tl.load(target + row, row_mask, -1)
    place = states + end[:, None] * state_width + column + channel[None, :]
    tl.store(place, c, (end >= 0)[:, None] & mask[None, :])
