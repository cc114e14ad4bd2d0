"""Products of many rows on Hopper through tensor descriptors, by which its copy engine moves tiles.

Every multiprocessor has one program, which takes tile after tile and loads the next one while it
multiplies. The sums are those of `triton_linear`, bit for bit.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from sruserve.kernels.triton import tiles
from sruserve.kernels.triton.tiles import LINEAR_DESCRIPTORS, LinearTile

_ALIGNED = 16  # bytes: a descriptor's address
_GROUP = 8  # blocks of rows that share a block of the weight while it is in the L2 cache


def takes_descriptors(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    capability: tuple[int, int],
    tile: LinearTile = LINEAR_DESCRIPTORS,
) -> bool:
    """Whether `descriptor_linear` computes a product without bias of x (rows, in) into `out`.

    Its tiles have to divide the weight (out, in): nothing else has been measured. All are
    contiguous; a view that begins between two multiples of 16 bytes is for `linear_kernel`.
    """
    outputs, inputs = weight.shape
    return (
        capability[0] == 9
        and x.dtype.itemsize == 2
        and tiles.shared_columns() is None
        and len(x) >= tiles.DESCRIPTOR_ROWS
        and outputs >= tiles.DESCRIPTOR_OUTPUTS
        and outputs % tile.columns == 0
        and inputs % tile.depth == 0
        and all(tensor.data_ptr() % _ALIGNED == 0 for tensor in (x, weight, out))
    )


def descriptor_linear(
    x: Tensor, weight: Tensor, out: Tensor, tile: LinearTile = LINEAR_DESCRIPTORS
) -> Tensor:
    """Compute and return out = x @ weight.T, summed in float32 from the first input upward.

    x: (rows, in), bfloat16 or float16. weight: (out, in). out: (rows, out). All have one dtype and
    device, and are contiguous.
    """
    blocks = -(-len(x) // tile.rows) * -(-len(weight) // tile.columns)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        descriptor_kernel[(min(blocks, multiprocessors(x.device)),)](
            TensorDescriptor.from_tensor(x, [tile.rows, tile.depth]),
            TensorDescriptor.from_tensor(weight, [tile.columns, tile.depth]),
            TensorDescriptor.from_tensor(out, [tile.rows, tile.columns]),
            len(x),
            IN=weight.shape[1],
            OUT=len(weight),
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            DEPTH=tile.depth,
            GROUP=_GROUP,
            num_warps=tile.warps,
            num_stages=tile.stages,
            enable_fp_fusion=False,
        )
    return out


@cache
def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors a GPU has; 1 for the CPU, where Triton interprets."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@triton.jit(do_not_specialize=["rows"])
def descriptor_kernel(
    x,
    weight,
    out,
    rows,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Compute the blocks of the output that fall to this program, in the order of `linear_kernel`.

    Past the ends of a tensor its descriptor reads zeros, and writes nothing.
    """
    ACROSS: tl.constexpr = (OUT + COLUMNS - 1) // COLUMNS
    down = tl.cdiv(rows, ROWS)
    for block in tl.range(tl.program_id(0), down * ACROSS, tl.num_programs(0), flatten=True):
        first = block // (GROUP * ACROSS) * GROUP
        group = min(down - first, GROUP)
        place = block % (GROUP * ACROSS)
        row = (first + place % group) * ROWS
        column = place // group * COLUMNS
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for k in range(0, IN, DEPTH):
            total = tl.dot(x.load([row, k]), weight.load([column, k]).T, total)
        out.store([row, column], total.to(out.dtype))
