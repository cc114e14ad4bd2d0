"""The shapes that the Triton kernels are shipped in: the one place that knows block sizes."""

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True)
class ScanTile:
    """How one program of the scan walks its sequence.

    channels: how many lie side by side in a program; 16 bytes a row or more, a power of 2.
    steps: how many are loaded together, as one stage, and unrolled; a power of 2.
    stages: the one that is worked on, the one that may be late, and those in flight.
    warps: of 32 threads.
    """

    channels: int
    steps: int
    stages: int
    warps: int


# 128 bytes of every row to a warp, 16 KiB in flight: four such programs on each of 132
# multiprocessors hide a microsecond of memory. Few channels leave most warp schedulers idle: there
# half as many channels to a warp take half as long to issue, and the chain from c to c shows.
SCAN_FLOAT32 = ScanTile(channels=32, steps=8, stages=6, warps=1)
SCAN_16_BIT = ScanTile(channels=64, steps=8, stages=6, warps=1)
SCAN_16_BIT_FEW = ScanTile(channels=32, steps=8, stages=6, warps=1)


def scan_tile(itemsize: int, channels: int) -> ScanTile:
    """The tile for a dtype of so many bytes and so many (sequence, channel) pairs."""
    if itemsize == 4:
        return SCAN_FLOAT32
    return SCAN_16_BIT_FEW if channels <= 16_384 else SCAN_16_BIT


@dataclass(frozen=True, slots=True)
class ProductTile:
    """What one program of a product, or of a step with its gates, works on.

    rows: of x.
    columns: of the output; in a step, channels of every gate.
    depth: of the inputs that are loaded together, as one stage.
    stages: how many of those are in flight or worked on.
    warps: of 32 threads.
    vector: without tensor cores, each row for itself; for few rows.
    """

    rows: int
    columns: int
    depth: int
    stages: int
    warps: int
    vector: bool = False


# Tiles of 16-bit types have 64 rows or more and 4 or 8 warps, which Hopper's `wgmma` asks for: a
# smaller one would be computed by another instruction, whose sums round differently.
PRODUCT_HOPPER_WIDE = ProductTile(rows=128, columns=256, depth=64, stages=4, warps=8)
PRODUCT_HOPPER = ProductTile(rows=128, columns=128, depth=64, stages=4, warps=8)
PRODUCT_AMPERE_WIDE = ProductTile(rows=128, columns=128, depth=32, stages=4, warps=8)
PRODUCT_AMPERE = ProductTile(rows=128, columns=64, depth=32, stages=4, warps=4)
PRODUCT_FLOAT32 = ProductTile(rows=64, columns=64, depth=16, stages=3, warps=4)
PRODUCT_DECODE = ProductTile(rows=64, columns=16, depth=128, stages=6, warps=4)
PRODUCT_DECODE_AMPERE = ProductTile(rows=64, columns=16, depth=128, stages=4, warps=4)
PRODUCT_DECODE_FLOAT32 = ProductTile(rows=16, columns=16, depth=32, stages=3, warps=4)
PRODUCT_CROWD = ProductTile(rows=64, columns=64, depth=64, stages=5, warps=4)
STEP_HOPPER = ProductTile(rows=64, columns=16, depth=128, stages=4, warps=4)
STEP_AMPERE = ProductTile(rows=64, columns=16, depth=64, stages=4, warps=4)
STEP_FLOAT32 = ProductTile(rows=16, columns=16, depth=32, stages=3, warps=4)
STEP_CROWD = ProductTile(rows=128, columns=64, depth=64, stages=3, warps=8)
STEP_CROWD_AMPERE = ProductTile(rows=64, columns=32, depth=32, stages=4, warps=4)
VECTOR_PRODUCTS = tuple(ProductTile(n, 4, 2048, 1, 4, vector=True) for n in (1, 2, 4, 8))
VECTOR_STEPS = tuple(ProductTile(n, 8, 512, 1, 4, vector=True) for n in (1, 2, 4, 8))
SAMPLE_VOCABULARY = 4096  # tokens that one program can put in order

_VECTOR_ROWS = 15  # up to here a step is bound by reading the weight, tensor cores or none
_CROWD = 256  # rows from which it is bound by arithmetic
_WIDE = 1024  # outputs from which the wide tile still fills a GPU at a few thousand rows


def product_tile(outputs: int, dtype: torch.dtype, capability: tuple[int, int]) -> ProductTile:
    """The tile of a product for prefill: the same for any number of rows."""
    if dtype is torch.float32:
        return PRODUCT_FLOAT32
    if capability[0] == 9:
        return PRODUCT_HOPPER_WIDE if outputs > _WIDE else PRODUCT_HOPPER
    return PRODUCT_AMPERE_WIDE if outputs > _WIDE else PRODUCT_AMPERE


def decode_tile(
    rows: int, dtype: torch.dtype, capability: tuple[int, int], fast: bool = False
) -> ProductTile:
    """The tile of a product in one step of `rows` streams.

    fast: by the number of rows, so that a row's last bits depend on it.
    """
    if fast and rows <= _VECTOR_ROWS:
        return _vector(VECTOR_PRODUCTS, rows)
    if dtype is torch.float32:
        return PRODUCT_DECODE_FLOAT32
    if fast and rows >= _CROWD:
        return PRODUCT_CROWD
    return PRODUCT_DECODE if capability[0] == 9 else PRODUCT_DECODE_AMPERE


def step_tile(
    rows: int, dtype: torch.dtype, capability: tuple[int, int], fast: bool = False
) -> ProductTile:
    """The tile of one step of `rows` streams; `fast` as for `decode_tile`."""
    if fast and rows <= _VECTOR_ROWS:
        return _vector(VECTOR_STEPS, rows)
    if dtype is torch.float32:
        return STEP_FLOAT32
    hopper = capability[0] == 9
    if fast and rows >= _CROWD:
        return STEP_CROWD if hopper else STEP_CROWD_AMPERE
    return STEP_HOPPER if hopper else STEP_AMPERE


def loadable(tile: ProductTile, inputs: int, dtype: torch.dtype) -> ProductTile:
    """A smaller tile where rows of `inputs` are not whole 16-byte pieces; the same bits.

    Such rows are not copied to shared memory behind the work, but pass through registers.
    """
    if tile.vector or inputs * dtype.itemsize % 16 == 0 or dtype is torch.float32:
        return tile
    return replace(tile, rows=64, columns=min(tile.columns, 32), depth=32, warps=4)


def sample_warps(vocabulary: int) -> int:
    """For a stream's program of the sampler, of so many tokens."""
    return min(max(vocabulary // 128, 1), 16)


def _vector(tiles: tuple[ProductTile, ...], rows: int) -> ProductTile:
    return next((tile for tile in tiles if tile.rows >= rows), tiles[-1])
