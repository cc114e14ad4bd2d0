"""Steps of a few streams on a GPU: a layer's gates and the next layer's projection in one launch.

A program has some channels of h, and adds their part of the projection to sums in fixed point.
Integers have the same sum in any order, so a step has the same bits whenever it runs again.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sruserve.kernels.cell import Cell
from sruserve.kernels.reference.fixed_point import FRACTION_BITS
from sruserve.kernels.triton.cell import SRU, cell_step
from sruserve.kernels.triton.dependent import begins_early, fetch_early, wait_for_launches
from sruserve.kernels.triton.linear import (
    add_dots,
    capability,
    check_memory,
    load_row,
    load_tile,
    within,
)
from sruserve.kernels.triton.step import load_gates, load_skip, load_state, rounded
from sruserve.kernels.triton.tiles import LinearTile

SPARE = 2  # numbers after the sums of a row: its count of misfits, and one for 16 bytes
_SPARE = tl.constexpr(SPARE)
_ONE, _STEP = tl.constexpr(2.0**FRACTION_BITS), tl.constexpr(2.0**-FRACTION_BITS)
_CLEARED = tl.constexpr(32)  # numbers that a program clears at once


def merged_step(
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    weight_c: Tensor | None,
    bias: Tensor | None,
    states: Tensor,
    source: Tensor,
    target: Tensor,
    column: int,
    cell: Cell,
    *,
    x_index: Tensor | None = None,
    residual_index: Tensor | None = None,
    next_weight: Tensor | None = None,
    next_sums: Tensor | None = None,
    limit: float = 0.0,
    clear: Tensor | None = None,
    tile: LinearTile,
) -> Tensor:
    """Run `triton_step`, and add h @ next_weight to `next_sums` as `reference.fixed_product` does.

    x: as for `triton_step`, or the sums of the launch before, (rows, in + SPARE), int64.
    next_weight: (width, next in), the dtype of `weight`: the next layer's projection, transposed.
    next_sums: (rows, next in + SPARE), int64, zeros before; their last numbers: see `SPARE`.
    limit: of |h|, see `reference.fixed_limit`.
    clear: int64 of any shape, filled with zeros: the sums that the launch after this one adds to.

    cell: an SRU's. The others are as for `triton_step`; all are contiguous and on one device.

    Returns h, (rows, width), the dtype of `weight`.
    """
    outputs, inputs = weight.shape
    width, rows = outputs // cell.blocks, len(source)
    check_memory(
        weight.device, x=x, weight=weight, next_weight=next_weight, next_sums=next_sums, clear=clear
    )
    out = torch.empty(rows, width, dtype=weight.dtype, device=weight.device)
    programs = -(-width // tile.columns)
    nexts = 0 if next_weight is None else next_weight.shape[1]
    early = begins_early(tile, capability(weight.device))
    with torch.cuda.device_of(weight):  # Triton launches on the current device
        merged_kernel[(programs, -(-rows // tile.rows))](
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
            next_weight,
            next_sums,
            clear,
            rows,
            0 if clear is None else clear.numel(),
            states.shape[1],
            column,
            float(cell.scale),
            limit,
            IN=inputs,
            WIDTH=width,
            NEXT=nexts,
            BLOCKS=cell.blocks,
            ACTIVATION=int(cell.activation),
            UPDATED_RESET=cell.updated_reset,
            FROM_SUMS=x.dtype is torch.int64,
            ROWS=tile.rows,
            CHANNELS=tile.columns,
            DEPTH=min(tile.depth, triton.next_power_of_2(inputs)),
            NEXTS=triton.next_power_of_2(nexts),
            DEPENDENT=early,
            num_warps=tile.warps,
            num_stages=tile.stages,
            enable_fp_fusion=True,
            **({"launch_pdl": True} if early else {}),
        )
    return out


@triton.jit(do_not_specialize=["rows", "clears", "state_width", "column", "scale", "limit"])
def merged_kernel(
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
    next_weight,
    next_sums,
    clear,
    rows,
    clears,
    state_width,
    column,
    scale,
    limit,
    IN: tl.constexpr,
    WIDTH: tl.constexpr,
    NEXT: tl.constexpr,
    BLOCKS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    UPDATED_RESET: tl.constexpr,
    FROM_SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    DEPTH: tl.constexpr,
    NEXTS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Run one step of ROWS streams and CHANNELS channels, and add to NEXT sums of every stream.

    The weights of both products are asked for at the start, so that they arrive together.
    FROM_SUMS: x are sums in fixed point. DEPENDENT: begin before the launch before has ended.
    """
    first = tl.program_id(1) * ROWS
    row = first + tl.arange(0, ROWS)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    row_mask = row < rows
    mask = within(channel, WIDTH, CHANNELS)
    if DEPENDENT:
        for plane in tl.static_range(BLOCKS):
            fetch_early(weight, plane * WIDTH + channel, BLOCKS * WIDTH, IN)
        if NEXT:
            fetch_early(next_weight, channel, WIDTH, NEXT)
        wait_for_launches()
    # What the gates need is loaded first, so that it arrives while the product is computed.
    end = tl.load(target + row, row_mask, -1)
    w_f, w_r, b_f, b_r = load_gates(weight_c, bias, channel, mask, WIDTH)
    c = load_state(states, source, row, row_mask, channel, mask, state_width, column)
    skip = load_skip(residual, residual_index, row, row_mask, channel, mask, WIDTH)
    if NEXT:
        following = load_tile(next_weight, channel, mask, 0, NEXT, NEXTS)
    first_u = tl.zeros([ROWS, CHANNELS], tl.float32)
    second_u = tl.zeros([ROWS, CHANNELS], tl.float32)
    third_u = tl.zeros([ROWS, CHANNELS], tl.float32)
    fourth_u = tl.zeros([ROWS, CHANNELS], tl.float32)
    for k in range(0, IN, DEPTH):
        right_1 = load_tile(weight, channel, mask, k, IN, DEPTH)
        right_2 = load_tile(weight, WIDTH + channel, mask, k, IN, DEPTH)
        right_3 = load_tile(weight, 2 * WIDTH + channel, mask, k, IN, DEPTH)
        right_4 = right_1
        if BLOCKS > 3:
            right_4 = load_tile(weight, 3 * WIDTH + channel, mask, k, IN, DEPTH)
        for place in tl.static_range(ROWS):
            if FROM_SUMS:
                left = load_sums(x, first + place, rows, k, IN, DEPTH, out.dtype.element_ty)
            else:
                left = load_row(x, x_index, first + place, rows, k, IN, DEPTH)
            first_u = add_dots(first_u, place, left, right_1)
            second_u = add_dots(second_u, place, left, right_2)
            third_u = add_dots(third_u, place, left, right_3)
            if BLOCKS > 3:
                fourth_u = add_dots(fourth_u, place, left, right_4)
    # Round the products to the dtype in which the scan would read them.
    dtype: tl.constexpr = out.dtype.element_ty
    first_u = rounded(first_u, None, channel, mask, dtype)
    second_u = rounded(second_u, None, channel, mask, dtype)
    third_u = rounded(third_u, None, channel, mask, dtype)
    if BLOCKS > 3:
        skip = rounded(fourth_u, None, channel, mask, dtype)
    else:
        skip = skip.to(tl.float32) * scale
    h, c = cell_step(
        first_u, second_u, third_u, skip, c, w_f, w_r, b_f, b_r, 1.0,
        SRU, BLOCKS, BLOCKS == 4 or residual is not None, ACTIVATION, UPDATED_RESET,
    )  # fmt: skip
    h = h.to(dtype)
    tl.store(
        out + row.to(tl.int64)[:, None] * WIDTH + channel[None, :],
        h,
        row_mask[:, None] & mask[None, :],
    )
    tl.debug_barrier()  # several warps hold each c: all must have read the states before the store
    place = states + end[:, None] * state_width + column + channel[None, :]
    tl.store(place, c, (end >= 0)[:, None] & mask[None, :])
    if NEXT:
        for place in tl.static_range(ROWS):
            add_to_sums(next_sums, h, following, place, first + place, rows, limit, NEXT, NEXTS)
    if clear is not None:
        clear_part(clear, clears)


@triton.jit
def load_sums(sums, row, rows, k, IN: tl.constexpr, DEPTH: tl.constexpr, DTYPE: tl.constexpr):
    """Load elements k to k + DEPTH of a row of sums in float32, rounded to the dtype of inputs.

    A row past `rows` is replaced by the last one; one with misfits is NaN.
    """
    depth = k + tl.arange(0, DEPTH)
    begin = sums + min(row, rows - 1).to(tl.int64) * (IN + _SPARE)
    numbers = tl.load(begin + depth, depth < IN, 0).to(tl.float32) * _STEP
    fits = (tl.load(begin + IN) == 0) | (depth >= IN)
    return tl.where(fits, numbers, float("nan")).to(DTYPE).to(tl.float32)


@triton.jit
def add_to_sums(sums, h, weight, place, row, rows, limit, NEXT: tl.constexpr, NEXTS: tl.constexpr):
    """Add the products of row `place` of h, (rows, channels), with a weight, (channels, NEXTS).

    See `reference.fixed_product`: every product is an integer before it is added to another.
    """
    is_row = tl.arange(0, h.shape[0]) == place
    h = tl.sum(tl.where(is_row[:, None], h.to(tl.float32), 0.0), 0)
    fits = tl.abs(h) < limit
    scaled = tl.where(fits, h, 0.0) * _ONE
    part = tl.sum((scaled[:, None] * weight.to(tl.float32)).to(tl.int64), 0)
    output = tl.arange(0, NEXTS)
    begin = sums + row.to(tl.int64) * (NEXT + _SPARE)
    tl.atomic_add(begin + output, part, within(output, NEXT, NEXTS) & (row < rows), sem="relaxed")
    misfits = tl.sum((~fits).to(tl.int64), 0)
    tl.atomic_add(begin + NEXT, misfits, (misfits > 0) & (row < rows), sem="relaxed")


@triton.jit
def clear_part(clear, count):
    """Fill this program's share of `count` numbers with zeros."""
    programs = tl.num_programs(0) * tl.num_programs(1)
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    for begin in range(program * _CLEARED, count, programs * _CLEARED):
        place = begin + tl.arange(0, _CLEARED)
        tl.store(clear + place, tl.zeros([_CLEARED], tl.int64), place < count)
