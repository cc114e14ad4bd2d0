"""The recurrences on a GPU: one Triton kernel that loads many steps ahead of the current one."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sruserve.kernels.cell import Cell
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.triton.cell import SRU, cell_step
from sruserve.kernels.triton.tiles import scan_tile


def triton_scan(
    u: Tensor,
    residual: Tensor | None,
    weight_c: Tensor | None,
    bias: Tensor | None,
    batch: RaggedBatch,
    column: int,
    cell: Cell,
    *,
    backward_from: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Run `reference_scan` on one GPU, for float32, bfloat16 and float16; `out` receives h.

    The bits of a (sequence, channel) depend only on its own inputs and the GPU: not on the batch,
    the width, or the split of time into calls. Rows after the last offset are not written.

    Raises ValueError, before it writes anything, for tensors that do not fit. It does not read
    offsets, source and target, which are in device memory: the caller ensures that they are in
    range and that every sequence is shorter than 2**31 rows.
    """
    rows, columns = u.shape
    width = columns // cell.blocks
    split = width if backward_from is None else backward_from
    h = torch.empty((rows, width), dtype=u.dtype, device=u.device) if out is None else out
    _check(u, residual, h, weight_c, bias, batch, column, cell, split)
    tile = scan_tile(u.element_size(), batch.sequences * width)
    programs = -(-split // tile.channels) - (split - width) // tile.channels
    if batch.sequences:
        with torch.cuda.device_of(u):  # Triton launches on the current device
            scan_kernel[(batch.sequences * programs,)](
                u,
                residual,
                h,
                weight_c,
                bias,
                batch.states,
                batch.offsets,
                batch.source,
                batch.target,
                batch.states.shape[1],
                column,
                float(cell.scale),
                cell.keep,
                WIDTH=width,
                SPLIT=split,
                KIND=int(cell.kind),
                BLOCKS=cell.blocks,
                ACTIVATION=int(cell.activation),
                UPDATED_RESET=cell.updated_reset,
                CHANNELS=tile.channels,
                STEPS=tile.steps,
                STAGES=tile.stages,
                num_warps=tile.warps,
                enable_fp_fusion=False,
            )
    return h


def _check(
    u: Tensor,
    residual: Tensor | None,
    h: Tensor,
    weight_c: Tensor | None,
    bias: Tensor | None,
    batch: RaggedBatch,
    column: int,
    cell: Cell,
    split: int,
) -> None:
    rows, width, dtype, device = u.shape[0], u.shape[1] // cell.blocks, u.dtype, u.device
    state_rows, state_width = batch.states.shape
    sequences = (batch.sequences,)
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"u must be float32, bfloat16 or float16, not {dtype}")
    cell.check(residual, weight_c, bias)
    for name, tensor, shape, kind in (
        ("u", u, (rows, cell.blocks * width), dtype),
        ("residual", residual, (rows, width), dtype),
        ("out", h, (rows, width), dtype),
        ("weight_c", weight_c, (2, width), torch.float32),
        ("bias", bias, (2, width), torch.float32),
        ("states", batch.states, (state_rows, state_width), torch.float32),
        ("offsets", batch.offsets, (batch.sequences + 1,), torch.int64),
        ("source", batch.source, sequences, torch.int64),
        ("target", batch.target, sequences, torch.int64),
    ):
        if tensor is not None and not (
            tensor.shape == shape
            and tensor.dtype is kind
            and tensor.device == device
            and tensor.is_contiguous()
        ):
            raise ValueError(
                f"{name} must have shape {shape} and dtype {kind}, contiguous and on {device}, not "
                f"{tuple(tensor.shape)} and {tensor.dtype} on {tensor.device}"
            )
    if not (width and 0 <= split <= width and 0 <= column <= state_width - width):
        raise ValueError(
            f"columns {column} to {column + width} must lie within the {state_width} columns of "
            f"states, and backward_from ({split}) within 0 to {width}"
        )


@triton.jit(do_not_specialize=["state_width", "column", "scale", "keep"])
def scan_kernel(
    u,
    residual,
    h,
    weight_c,
    bias,
    states,
    offsets,
    source,
    target,
    state_width,
    column,
    scale,
    keep,
    WIDTH: tl.constexpr,
    SPLIT: tl.constexpr,
    KIND: tl.constexpr,
    BLOCKS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    UPDATED_RESET: tl.constexpr,
    CHANNELS: tl.constexpr,
    STEPS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Run one block of channels of one sequence; channels from SPLIT on run backward."""
    HAS_X: tl.constexpr = BLOCKS == 4 or residual is not None
    FORWARD: tl.constexpr = (SPLIT + CHANNELS - 1) // CHANNELS
    BACKWARD: tl.constexpr = (WIDTH - SPLIT + CHANNELS - 1) // CHANNELS
    sequence = tl.program_id(0) // (FORWARD + BACKWARD)
    block = tl.program_id(0) % (FORWARD + BACKWARD)
    first = tl.load(offsets + sequence)
    end = tl.load(offsets + sequence + 1)
    start = block * CHANNELS
    limit = SPLIT
    row = first
    sign = 1
    if SPLIT < WIDTH:  # noqa: SIM102 (decided when compiled)
        if block >= FORWARD:
            start = SPLIT + (block - FORWARD) * CHANNELS
            limit = WIDTH
            row = end - 1
            sign = -1
    channel = start + tl.arange(0, CHANNELS)
    inside = channel < limit
    if SPLIT % CHANNELS == 0 and WIDTH % CHANNELS == 0:
        inside = tl.full([CHANNELS], True, tl.int1)
    w_f, w_r, b_f, b_r = 0.0, 0.0, 0.0, 0.0
    if KIND == SRU:
        w_f = tl.load(weight_c + channel, inside, 0.0)
        w_r = tl.load(weight_c + WIDTH + channel, inside, 0.0)
        b_f = tl.load(bias + channel, inside, 0.0)
        b_r = tl.load(bias + WIDTH + channel, inside, 0.0)
    state = states + column + channel
    state_row = tl.load(source + sequence)
    c = tl.zeros([CHANNELS], tl.float32)
    if state_row >= 0:
        c = tl.load(state + state_row * state_width, inside, 0.0)

    # A tile has STEPS steps, each with the planes of u and x: one load, so one wait.
    line = tl.arange(0, 4 * STEPS)[:, None]
    part = line % 4
    time = row + line // 4 * sign
    place = u + time * (BLOCKS * WIDTH) + part * WIDTH + channel[None, :]
    stride = tl.full([4 * STEPS, 1], BLOCKS * WIDTH, tl.int32)
    if residual is not None:
        place = tl.where(part == 3, residual + time * WIDTH + channel[None, :], place)
        stride = tl.where(part == 3, WIDTH, stride)
    PARTS: tl.constexpr = 4 if HAS_X else BLOCKS
    wanted = inside[None, :] & (part < PARTS)
    h_place = h + row * WIDTH + channel
    steps = (end - first).to(tl.int32)
    last = c
    for done in tl.range(0, steps, STEPS, num_stages=STAGES):
        left = steps - done
        even, odd = alternate_rows(tl.load(place, wanted & (line // 4 < left), 0.0))
        firsts, thirds = alternate_rows(even)
        seconds, xs = alternate_rows(odd)
        firsts, seconds, thirds, xs = rows(firsts), rows(seconds), rows(thirds), rows(xs)
        for step in tl.static_range(STEPS):
            x = xs[step].to(tl.float32)
            if BLOCKS == 3:
                x *= scale
            out, c = cell_step(
                firsts[step].to(tl.float32), seconds[step].to(tl.float32),
                thirds[step].to(tl.float32), x, c, w_f, w_r, b_f, b_r, keep,
                KIND, BLOCKS, HAS_X, ACTIVATION, UPDATED_RESET,
            )  # fmt: skip
            # A vector, because the interpreter garbles `vector & scalar` masks.
            is_step = tl.full([CHANNELS], step, tl.int32) < left
            h_row = h_place + step * sign * WIDTH
            tl.store(h_row, out.to(h.dtype.element_ty), inside & is_step)
            # Past the end c continues over zeros: a condition would lengthen the chain.
            last = tl.where(is_step, c, last)
        place += stride * (sign * STEPS)
        h_place += sign * (STEPS * WIDTH)
    state_row = tl.load(target + sequence)
    if state_row >= 0:
        tl.store(state + state_row * state_width, last, inside)


@triton.jit
def alternate_rows(tile):
    """Return the even and the odd rows of a tile, without moving data."""
    pairs = tl.reshape(tile, [tile.shape[0] // 2, 2, tile.shape[1]])
    return tl.split(tl.permute(pairs, [0, 2, 1]))


@triton.jit
def rows(tile):
    """Return the rows of a (2**n, channels) tile as a tuple of vectors, without moving data."""
    ROWS: tl.constexpr = tile.shape[0]
    CHANNELS: tl.constexpr = tile.shape[1]
    if ROWS == 1:
        return (tl.reshape(tile, [CHANNELS]),)
    else:
        halves = tl.permute(tl.reshape(tile, [2, ROWS // 2, CHANNELS]), [1, 2, 0])
        first, second = tl.split(halves)
        return rows(first) + rows(second)
