"""One step of an element-wise layer for many streams on a GPU: product and gates in one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sruserve.kernels.cell import Cell
from sruserve.kernels.triton.cell import cell_step
from sruserve.kernels.triton.dependent import begins_early, fetch_early, wait_for_launches
from sruserve.kernels.triton.linear import (
    add_bias,
    add_dots,
    add_product,
    capability,
    check_linear,
    check_memory,
    load_row,
    load_tile,
    picked,
    within,
)
from sruserve.kernels.triton.tiles import LinearTile, loadable, step_tile


def triton_step(
    x: Tensor,
    weight: Tensor,
    weight_bias: Tensor | None,
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
    out: Tensor | None = None,
    tile: LinearTile | None = None,
) -> Tensor:
    """Run one step of `rows` streams: u = x[x_index] @ weight.T + weight_bias, then the recurrence.

    x: (rows, in), or any number of rows with an `x_index`; float32, bfloat16 or float16.
    weight: (blocks * width, in), the dtype of x, in the planes of `cell`.
    weight_bias: (blocks * width), any of those dtypes, or None.
    residual: (rows, width), or any number of rows with a `residual_index`, the dtype of x; see
        `reference_scan`.
    weight_c, bias: see `reference_scan`.
    states: (pool, state width), float32: the state is in columns `column` to `column + width`.
    source, target: (rows), int64: the rows of `states` to read (-1: zeros) and to write (-1: none).
        A stream's two rows may be equal, but no two streams may share a row.
    x_index, residual_index: (rows), int64: the rows of x and of residual to read, unchecked.
    out: (rows, width), the dtype of x: receives h; None allocates it.
    tile: block sizes; None takes the tile with the bits of `triton_linear` followed by
        `triton_scan`.

    Every tensor is contiguous and on the same device.

    Returns h, (rows, width), the dtype of x. Raises ValueError, before it writes anything, for
    tensors that do not fit.
    """
    rows = x.shape[0] if x_index is None else x_index.shape[0]
    outputs, inputs = check_linear(x, weight, x_index)
    width = outputs // cell.blocks
    if not width or outputs != cell.blocks * width:
        raise ValueError(f"weight must have a multiple of {cell.blocks} rows, not {outputs}")
    if weight_bias is not None and weight_bias.shape != (outputs,):
        raise ValueError(
            f"weight_bias must have shape ({outputs},), not {tuple(weight_bias.shape)}"
        )
    cell.check(residual, weight_c, bias)
    for name, gate in (("weight_c", weight_c), ("bias", bias)):
        if gate is not None and (gate.shape != (2, width) or gate.dtype is not torch.float32):
            raise ValueError(f"{name} must have shape {(2, width)} and dtype float32")
    if states.dtype is not torch.float32:
        raise ValueError(f"states must have dtype float32, not {states.dtype}")
    if states.dim() != 2 or not 0 <= column <= states.shape[1] - width:
        raise ValueError(
            f"columns {column} to {column + width} must lie within states, which has shape "
            f"{tuple(states.shape)}"
        )
    for name, rows_of in (("source", source), ("target", target)):
        if rows_of.shape != (rows,) or rows_of.dtype is not torch.int64:
            raise ValueError(f"{name} must have shape ({rows},) and dtype int64")
    if residual is not None:
        _check_residual(residual, residual_index, rows, width, x.dtype)
    elif residual_index is not None:
        raise ValueError("residual_index needs a residual: pass both, or neither")
    if out is None:
        out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    elif out.shape != (rows, width) or out.dtype is not x.dtype:
        raise ValueError(f"out must have shape {(rows, width)} and dtype {x.dtype}")
    check_memory(
        x.device,
        weight=weight,
        weight_bias=weight_bias,
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
    early = begins_early(tile, capability(x.device))
    with torch.cuda.device_of(x):  # Triton launches on the current device
        step_kernel[(-(-width // tile.columns), -(-rows // tile.rows))](
            x,
            x_index,
            weight,
            weight_bias,
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
            float(cell.scale),
            cell.keep,
            IN=inputs,
            WIDTH=width,
            KIND=int(cell.kind),
            BLOCKS=cell.blocks,
            ACTIVATION=int(cell.activation),
            UPDATED_RESET=cell.updated_reset,
            ROWS=tile.rows,
            CHANNELS=tile.columns,
            DEPTH=depth,
            VECTOR=tile.vector,
            DEPENDENT=early,
            num_warps=tile.warps,
            num_stages=tile.stages,
            enable_fp_fusion=tile.vector,
            **({"launch_pdl": True} if early else {}),
        )
    return out


def _check_residual(
    residual: Tensor,
    index: Tensor | None,
    rows: int,
    width: int,
    dtype: torch.dtype,
) -> None:
    if residual.dim() != 2 or residual.shape[1] != width or residual.dtype is not dtype:
        raise ValueError(f"residual must have shape {(rows, width)} and dtype {dtype}")
    if index is None and residual.shape[0] != rows:
        raise ValueError(f"residual must have {rows} rows, not {residual.shape[0]}")
    if index is not None and (index.shape != (rows,) or index.dtype is not torch.int64):
        raise ValueError(f"residual_index must have shape ({rows},) and dtype int64")


@triton.jit(do_not_specialize=["rows", "state_width", "column", "scale", "keep"])
def step_kernel(
    x,
    x_index,
    weight,
    weight_bias,
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
    keep,
    IN: tl.constexpr,
    WIDTH: tl.constexpr,
    KIND: tl.constexpr,
    BLOCKS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    UPDATED_RESET: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    DEPTH: tl.constexpr,
    VECTOR: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Run one step of ROWS streams and CHANNELS channels, with all their gates.

    VECTOR: for a few rows, multiplied one by one, with every plane of the weight in flight.
    DEPENDENT: begin before the launch before this one has ended.
    """
    first = tl.program_id(1) * ROWS
    row = first + tl.arange(0, ROWS)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    row_mask = row < rows
    mask = within(channel, WIDTH, CHANNELS)
    if DEPENDENT:
        for plane in tl.static_range(BLOCKS):
            fetch_early(weight, plane * WIDTH + channel, BLOCKS * WIDTH, IN)
        wait_for_launches()
    # Load first what registers can hold: it arrives while the product is computed.
    EARLY_STATES: tl.constexpr = BLOCKS * ROWS * CHANNELS <= 3 * 128 * 64
    EARLY_GATES: tl.constexpr = CHANNELS <= 16
    if EARLY_GATES:
        end = tl.load(target + row, row_mask, -1)
        w_f, w_r, b_f, b_r = load_gates(weight_c, bias, channel, mask, WIDTH)
    if EARLY_STATES:
        c = load_state(states, source, row, row_mask, channel, mask, state_width, column)
        skip = load_skip(residual, residual_index, row, row_mask, channel, mask, WIDTH)
    x_row = picked(x_index, row, row_mask)
    first_u = tl.zeros([ROWS, CHANNELS], tl.float32)
    second_u = tl.zeros([ROWS, CHANNELS], tl.float32)
    third_u = tl.zeros([ROWS, CHANNELS], tl.float32)
    fourth_u = tl.zeros([ROWS, CHANNELS], tl.float32)
    for k in range(0, IN, DEPTH):
        right_1 = load_tile(weight, channel, mask, k, IN, DEPTH)
        right_2, right_3, right_4 = right_1, right_1, right_1
        if BLOCKS > 1:
            right_2 = load_tile(weight, WIDTH + channel, mask, k, IN, DEPTH)
        if BLOCKS > 2:
            right_3 = load_tile(weight, 2 * WIDTH + channel, mask, k, IN, DEPTH)
        if BLOCKS > 3:
            right_4 = load_tile(weight, 3 * WIDTH + channel, mask, k, IN, DEPTH)
        if VECTOR:
            for place in tl.static_range(ROWS):
                left = load_row(x, x_index, first + place, rows, k, IN, DEPTH)
                first_u = add_dots(first_u, place, left, right_1)
                if BLOCKS > 1:
                    second_u = add_dots(second_u, place, left, right_2)
                if BLOCKS > 2:
                    third_u = add_dots(third_u, place, left, right_3)
                if BLOCKS > 3:
                    fourth_u = add_dots(fourth_u, place, left, right_4)
        else:
            left = load_tile(x, x_row, row_mask, k, IN, DEPTH)
            first_u = add_product(first_u, left, right_1)
            if BLOCKS > 1:
                second_u = add_product(second_u, left, right_2)
            if BLOCKS > 2:
                third_u = add_product(third_u, left, right_3)
            if BLOCKS > 3:
                fourth_u = add_product(fourth_u, left, right_4)
    if not EARLY_STATES:
        c = load_state(states, source, row, row_mask, channel, mask, state_width, column)
        skip = load_skip(residual, residual_index, row, row_mask, channel, mask, WIDTH)
    # Round the products to the dtype in which the scan would read them.
    dtype: tl.constexpr = out.dtype.element_ty
    first_u = rounded(first_u, weight_bias, channel, mask, dtype)
    if BLOCKS > 1:
        second_u = rounded(second_u, weight_bias, WIDTH + channel, mask, dtype)
    if BLOCKS > 2:
        third_u = rounded(third_u, weight_bias, 2 * WIDTH + channel, mask, dtype)
    if BLOCKS > 3:
        skip = rounded(fourth_u, weight_bias, 3 * WIDTH + channel, mask, dtype)
    else:
        skip = skip.to(tl.float32) * scale
    if not EARLY_GATES:
        w_f, w_r, b_f, b_r = load_gates(weight_c, bias, channel, mask, WIDTH)
    h, c = cell_step(
        first_u, second_u, third_u, skip, c, w_f, w_r, b_f, b_r, keep,
        KIND, BLOCKS, BLOCKS == 4 or residual is not None, ACTIVATION, UPDATED_RESET,
    )  # fmt: skip
    tl.store(
        out + row.to(tl.int64)[:, None] * WIDTH + channel[None, :],
        h.to(dtype),
        row_mask[:, None] & mask[None, :],
    )
    if not EARLY_GATES:
        end = tl.load(target + row, row_mask, -1)
    if VECTOR:
        # Several warps hold each c: all must have read the states before one replaces them.
        tl.debug_barrier()
    place = states + end[:, None] * state_width + column + channel[None, :]
    tl.store(place, c, (end >= 0)[:, None] & mask[None, :])


@triton.jit
def load_state(states, source, row, row_mask, channel, mask, state_width, column):
    """Load the c of some streams, (rows, channels); zeros for a stream that starts."""
    start = tl.load(source + row, row_mask, -1)
    place = states + start[:, None] * state_width + column + channel[None, :]
    return tl.load(place, (start >= 0)[:, None] & mask[None, :], 0.0)


@triton.jit
def load_gates(weight_c, bias, channel, mask, WIDTH: tl.constexpr):
    """Load an SRU's weights of c and biases, each (1, channels); zeros for other cells."""
    if weight_c is None:
        none = tl.zeros([1, channel.shape[0]], tl.float32)
        return none, none, none, none
    else:
        w_f = tl.load(weight_c + channel, mask, 0.0)[None, :]
        w_r = tl.load(weight_c + WIDTH + channel, mask, 0.0)[None, :]
        b_f = tl.load(bias + channel, mask, 0.0)[None, :]
        b_r = tl.load(bias + WIDTH + channel, mask, 0.0)[None, :]
        return w_f, w_r, b_f, b_r


@triton.jit
def load_skip(residual, index, row, row_mask, channel, mask, WIDTH: tl.constexpr):
    if residual is None:
        return tl.zeros([row.shape[0], channel.shape[0]], tl.float32)
    else:
        place = residual + picked(index, row, row_mask)[:, None] * WIDTH + channel[None, :]
        return tl.load(place, row_mask[:, None] & mask[None, :], 0.0)


@triton.jit
def rounded(product, bias, column, mask, DTYPE: tl.constexpr):
    """Return a plane of the product with its bias, rounded to the dtype, in float32."""
    if bias is not None:
        product = add_bias(product, bias, column, mask)
    elif product.dtype == DTYPE:
        product = tl.fma(product, 1.0, -0.0)  # as in `add_bias`: a cell's sums stay apart
    return product.to(DTYPE).to(tl.float32)
