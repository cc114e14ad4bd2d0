"""Matrix products on a GPU whose rows do not depend on the number of rows."""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from sruserve.kernels.triton import descriptors
from sruserve.kernels.triton.dependent import begins_early, fetch_early, wait_for_launches
from sruserve.kernels.triton.tiles import LinearTile, linear_tile, loadable

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_GROUP = 8  # blocks of rows that share a block of the weight while it is in the L2 cache


def triton_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    index: Tensor | None = None,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
    tile: LinearTile | None = None,
) -> Tensor:
    """Compute y = x[index] @ weight.T + bias, summed in float32 from the first input upward.

    x: (rows, in), float32, bfloat16 or float16. weight: (out, in), the dtype of x.
    bias: (out), any of those dtypes.
    index: (picks), int64: the rows of x to multiply, unchecked; None takes all rows in order.
    out: (picks or rows, out): receives y; None allocates it in `dtype`, by default that of x.
    tile: block sizes; None takes the tile for prefill.

    Every tensor is contiguous and on the same device. The bits of a row depend only on that row and
    the weight, and are the same for every tile that is not `vector`.

    Returns y. Raises ValueError, before it writes anything, for tensors that do not fit.
    """
    picks = x.shape[0] if index is None else index.shape[0]
    outputs, inputs = check_linear(x, weight, index)
    if bias is not None and bias.shape != (outputs,):
        raise ValueError(f"bias must have shape ({outputs},), not {tuple(bias.shape)}")
    if out is None:
        out = torch.empty(picks, outputs, dtype=dtype or x.dtype, device=x.device)
    elif out.shape != (picks, outputs) or dtype not in (None, out.dtype):
        raise ValueError(
            f"out must have shape {(picks, outputs)} and dtype {dtype or out.dtype}, not "
            f"{tuple(out.shape)} and {out.dtype}"
        )
    check_memory(x.device, weight=weight, bias=bias, index=index, out=out)
    if tile is None:
        place = capability(x.device)
        plain = index is None and bias is None and out.dtype is x.dtype
        if plain and descriptors.takes_descriptors(x, weight, out, place):
            return descriptors.descriptor_linear(x, weight, out)
        tile = linear_tile(outputs, x.dtype, place)
    tile = loadable(tile, inputs, x.dtype)
    blocks = -(-picks // tile.rows) * -(-outputs // tile.columns)
    if not blocks:
        return out
    depth = min(tile.depth, triton.next_power_of_2(inputs)) if tile.vector else tile.depth
    early = begins_early(tile, capability(x.device))
    with torch.cuda.device_of(x):  # Triton launches on the current device
        linear_kernel[(blocks,)](
            x,
            index,
            weight,
            bias,
            out,
            picks,
            IN=inputs,
            OUT=outputs,
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            DEPTH=depth,
            GROUP=_GROUP,
            VECTOR=tile.vector,
            DEPENDENT=early,
            num_warps=tile.warps,
            num_stages=tile.stages,
            enable_fp_fusion=tile.vector,
            **({"launch_pdl": True} if early else {}),
        )
    return out


def check_linear(x: Tensor, weight: Tensor, index: Tensor | None) -> tuple[int, int]:
    """Return the outputs and inputs of a weight; raise ValueError if it does not fit x."""
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        shapes = f"{tuple(x.shape)} and {tuple(weight.shape)}"
        raise ValueError(f"x and weight must be (rows, in) and (out, in), not {shapes}")
    if x.dtype is not weight.dtype or x.dtype not in _DTYPES:
        raise ValueError(
            f"x and weight must share float32, bfloat16 or float16, not {x.dtype}, {weight.dtype}"
        )
    if not x.is_contiguous():
        raise ValueError("x must be contiguous")
    if index is not None and (index.dim() != 1 or index.dtype is not torch.int64):
        raise ValueError(
            f"index must have one dimension and dtype int64, not {index.dim()} and {index.dtype}"
        )
    return weight.shape[0], weight.shape[1]


def check_memory(device: torch.device, **tensors: Tensor | None) -> None:
    """Raise ValueError that names a tensor which is not contiguous or not on `device`."""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous")
        if tensor.device != device:
            raise ValueError(f"{name} must be on {device}, not on {tensor.device}")


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of a GPU; (0, 0) for the CPU, where Triton interprets."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


@triton.jit(do_not_specialize=["picks"])
def linear_kernel(
    x,
    index,
    weight,
    bias,
    out,
    picks,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    VECTOR: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Compute one block of the output; GROUP blocks of rows share a block of columns in turn.

    VECTOR: for a few rows, multiplied one by one, with a complete row of the weight in flight.
    DEPENDENT: begin before the launch before this one has ended.
    """
    ACROSS: tl.constexpr = (OUT + COLUMNS - 1) // COLUMNS
    down = tl.cdiv(picks, ROWS)
    first = tl.program_id(0) // (GROUP * ACROSS) * GROUP
    group = min(down - first, GROUP)
    place = tl.program_id(0) % (GROUP * ACROSS)
    begin = (first + place % group) * ROWS
    rows = begin + tl.arange(0, ROWS)
    columns = place // group * COLUMNS + tl.arange(0, COLUMNS)
    row_mask = rows < picks
    column_mask = within(columns, OUT, COLUMNS)
    if DEPENDENT:
        fetch_early(weight, columns, OUT, IN)
        wait_for_launches()
    sources = picked(index, rows, row_mask)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for k in range(0, IN, DEPTH):
        right = load_tile(weight, columns, column_mask, k, IN, DEPTH)
        if VECTOR:
            for row in tl.static_range(ROWS):
                left = load_row(x, index, begin + row, picks, k, IN, DEPTH)
                total = add_dots(total, row, left, right.to(tl.float32))
        else:
            left = load_tile(x, sources, row_mask, k, IN, DEPTH)
            total = add_product(total, left, right)
    store_product(out, bias, total, rows, row_mask, columns, column_mask, OUT)


@triton.jit
def within(places, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Return which places are below SIZE; all, known at compile time, if BLOCK divides SIZE."""
    if SIZE % BLOCK == 0:
        return tl.full([BLOCK], True, tl.int1)
    else:
        return places < SIZE


@triton.jit
def picked(index, rows, mask):
    """Return index[rows], or the rows themselves without an index; int64."""
    if index is None:
        return rows.to(tl.int64)
    else:
        return tl.load(index + rows, mask, 0)


@triton.jit
def load_tile(pointer, rows, mask, k, IN: tl.constexpr, DEPTH: tl.constexpr):
    """Load elements k to k + DEPTH of rows of length IN; zeros past the ends of rows and mask."""
    depth = k + tl.arange(0, DEPTH)
    place = pointer + rows.to(tl.int64)[:, None] * IN + depth[None, :]
    if IN % DEPTH == 0:
        return tl.load(place, mask[:, None], 0.0)
    else:
        return tl.load(place, mask[:, None] & (depth < IN)[None, :], 0.0)


@triton.jit
def load_row(pointer, index, row, rows, k, IN: tl.constexpr, DEPTH: tl.constexpr):
    """Load elements k to k + DEPTH of one row in float32, zeros past its end.

    A row past `rows` is replaced by the last one.
    """
    depth = k + tl.arange(0, DEPTH)
    row = min(row, rows - 1)
    source = row.to(tl.int64) if index is None else tl.load(index + row)
    return tl.load(pointer + source * IN + depth, depth < IN, 0.0).to(tl.float32)


@triton.jit
def add_product(total, left, right):
    """Add the products of rows with rows, with the one instruction that all 16-bit tiles share."""
    return tl.dot(left, tl.trans(right), total, input_precision="ieee")


@triton.jit
def add_dots(total, row, left, right):
    """Add to one row of `total` the products of a vector with every row of `right`."""
    dots = tl.sum(left[None, :] * right, 1)
    is_row = tl.arange(0, total.shape[0]) == row
    return total + tl.where(is_row[:, None], dots[None, :], 0.0)


@triton.jit
def add_bias(total, bias, columns, mask):
    """Add a bias to the complete sums, in float32.

    A plain sum would be merged into a product of a single stage, which then starts from the bias:
    other bits than those of a tile with several stages.
    """
    return tl.fma(total, 1.0, tl.load(bias + columns, mask, 0.0).to(tl.float32)[None, :])


@triton.jit
def store_product(out, bias, total, rows, row_mask, columns, column_mask, OUT: tl.constexpr):
    if bias is not None:
        total = add_bias(total, bias, columns, column_mask)
    place = out + rows.to(tl.int64)[:, None] * OUT + columns[None, :]
    tl.store(place, total.to(out.dtype.element_ty), row_mask[:, None] & column_mask[None, :])
