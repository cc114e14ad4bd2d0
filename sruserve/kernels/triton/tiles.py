"""The block sizes of the Triton kernels; no other file knows them."""

from dataclasses import dataclass, replace

import torch

from sruserve.kernels.candidates import Candidate


@dataclass(frozen=True, slots=True)
class ScanTile:
    """Block sizes of one program of the scan.

    channels: adjacent channels per program, a power of 2, at least 16 bytes per row.
    steps: steps that are loaded together, as one stage, and unrolled; a power of 2.
    stages: number of stages: the current one, one that may be late, and those in flight.
    warps: number of warps of 32 threads.
    """

    channels: int
    steps: int
    stages: int
    warps: int


# A warp reads 128 bytes of every row and has 16 KiB in flight: four such programs on each of 132
# multiprocessors hide 1 µs of memory latency. With few channels most warp schedulers are idle, and
# the latency of the chain from c to c dominates: half the channels per warp issue in half the time.
SCAN_FLOAT32 = ScanTile(channels=32, steps=8, stages=6, warps=1)
SCAN_16_BIT = ScanTile(channels=64, steps=8, stages=6, warps=1)
SCAN_16_BIT_FEW = ScanTile(channels=32, steps=8, stages=6, warps=1)


def scan_tile(itemsize: int, channels: int) -> ScanTile:
    """Return the tile for a dtype of `itemsize` bytes and a number of (sequence, channel) pairs."""
    if itemsize == 4:
        return SCAN_FLOAT32
    return SCAN_16_BIT_FEW if channels <= 16_384 else SCAN_16_BIT


@dataclass(frozen=True, slots=True)
class LinearTile:
    """Block sizes of one program of a matrix product, or of a step with its gates.

    rows: rows of x.
    columns: columns of the output; in a step, channels of every gate.
    depth: number of inputs that are loaded together, as one stage.
    stages: number of stages, in flight or in use.
    warps: number of warps of 32 threads.
    vector: multiply each row alone, without tensor cores; for few rows.
    early: begin while the launch before ends, on a GPU that can (`triton.dependent`).
    """

    rows: int
    columns: int
    depth: int
    stages: int
    warps: int
    vector: bool = False
    early: bool = False


# Tiles of 16-bit types have 64 rows or more and 4 or 8 warps, as Hopper's `wgmma` requires. Smaller
# tiles use another instruction, whose sums round differently.
LINEAR_HOPPER_WIDE = LinearTile(rows=128, columns=256, depth=64, stages=3, warps=8)
LINEAR_DESCRIPTORS = LinearTile(rows=128, columns=256, depth=64, stages=3, warps=8)
LINEAR_HOPPER = LinearTile(rows=128, columns=128, depth=64, stages=4, warps=8)
LINEAR_AMPERE_WIDE = LinearTile(rows=128, columns=128, depth=32, stages=4, warps=8)
LINEAR_AMPERE = LinearTile(rows=128, columns=64, depth=32, stages=4, warps=4)
LINEAR_FLOAT32 = LinearTile(rows=64, columns=64, depth=16, stages=3, warps=4)
LINEAR_DECODE = LinearTile(rows=64, columns=16, depth=128, stages=10, warps=4, early=True)
LINEAR_DECODE_AMPERE = LinearTile(rows=64, columns=16, depth=128, stages=4, warps=4)
LINEAR_DECODE_FLOAT32 = LinearTile(rows=16, columns=16, depth=32, stages=3, warps=4)
LINEAR_DECODE_NARROW = LinearTile(rows=64, columns=8, depth=128, stages=6, warps=4, early=True)
LINEAR_MIDDLE_BATCH = LinearTile(rows=64, columns=32, depth=128, stages=4, warps=4)
LINEAR_LARGE_BATCH = LinearTile(rows=64, columns=64, depth=128, stages=4, warps=4)
LINEAR_LARGE_BATCH_AMPERE = LinearTile(rows=64, columns=64, depth=64, stages=5, warps=4)
STEP_HOPPER = LinearTile(rows=64, columns=16, depth=128, stages=5, warps=4, early=True)
STEP_NARROW = LinearTile(rows=64, columns=8, depth=128, stages=4, warps=4, early=True)
STEP_AMPERE = LinearTile(rows=64, columns=16, depth=64, stages=4, warps=4)
STEP_FLOAT32 = LinearTile(rows=16, columns=16, depth=32, stages=3, warps=4)
STEP_MIDDLE_BATCH = LinearTile(rows=64, columns=32, depth=64, stages=4, warps=4)
STEP_LARGE_BATCH = LinearTile(rows=128, columns=64, depth=64, stages=3, warps=8)
STEP_LARGE_BATCH_AMPERE = LinearTile(rows=64, columns=32, depth=32, stages=4, warps=4)
LINEAR_VECTOR = (
    LinearTile(rows=1, columns=4, depth=2048, stages=1, warps=8, vector=True, early=True),
    LinearTile(rows=2, columns=2, depth=2048, stages=1, warps=4, vector=True),
    LinearTile(rows=4, columns=4, depth=2048, stages=1, warps=4, vector=True),
    LinearTile(rows=8, columns=4, depth=2048, stages=1, warps=4, vector=True),
)
STEP_VECTOR = (
    LinearTile(rows=1, columns=8, depth=512, stages=1, warps=4, vector=True, early=True),
    LinearTile(rows=2, columns=4, depth=512, stages=1, warps=4, vector=True),
    LinearTile(rows=4, columns=8, depth=512, stages=1, warps=4, vector=True),
    LinearTile(rows=8, columns=8, depth=512, stages=1, warps=4, vector=True),
)
MERGED_STEP = tuple(LinearTile(n, 16, 512, 1, 8, vector=True, early=True) for n in (1, 2))
MERGED_ROWS = 2  # streams up to which a step may merge; more have too many sums to add to
MERGED_WIDTH = 1024  # of the widest projection that registers hold beside a layer's weight
DESCRIPTOR_ROWS, DESCRIPTOR_OUTPUTS = 2048, 1024  # of a product, from which descriptors gain
SAMPLE_VOCABULARY = 4096  # the most tokens that one program can sort

# The columns of all tiles but vector ones, or None for each its own. Sums are the same for any
# columns on an H100; `python -m bench.gpu --groups bits` shows it on another device. Where it shows
# other bits, set 32, the most that fits with four gates: long inputs are then slower.
SHARED_COLUMNS: int | None = None
_shared_columns = SHARED_COLUMNS

# Rows up to which tensor cores gain nothing in a step, by the size of the dtype.
_VECTOR_ROWS = {2: 2, 4: 15}
# Tiles of a step on Hopper, from so many rows on, in the order in which they are looked up.
_LINEAR_HOPPER_STEPS = ((1024, LINEAR_LARGE_BATCH), (256, LINEAR_MIDDLE_BATCH), (1, LINEAR_DECODE))
_STEP_HOPPER_STEPS = ((512, STEP_LARGE_BATCH), (256, STEP_MIDDLE_BATCH), (1, STEP_HOPPER))
_LARGE_BATCH = 256  # rows from which arithmetic bounds a step on other GPUs, in `fast`
_NARROW_ROWS = 64  # rows of one program: more of them would read the weight again
_WIDE = 1024  # above so many outputs the wide tile fills a GPU even with a few thousand rows


def linear_tile(outputs: int, dtype: torch.dtype, capability: tuple[int, int]) -> LinearTile:
    """Return the tile of a product for prefill, the same for any number of rows."""
    if dtype is torch.float32:
        return with_shared_columns(LINEAR_FLOAT32)
    if capability[0] == 9:
        return with_shared_columns(LINEAR_HOPPER_WIDE if outputs > _WIDE else LINEAR_HOPPER)
    return with_shared_columns(LINEAR_AMPERE_WIDE if outputs > _WIDE else LINEAR_AMPERE)


def decode_tile(
    rows: int, dtype: torch.dtype, capability: tuple[int, int], fast: bool = False
) -> LinearTile:
    """Return the tile of a product in one step of `rows` streams.

    fast: choose a vector tile for few rows; a row's last bits then depend on their number.
    """
    if fast and rows <= _VECTOR_ROWS[dtype.itemsize]:
        return _vector(LINEAR_VECTOR, rows)
    if dtype is torch.float32:
        return with_shared_columns(LINEAR_DECODE_FLOAT32)
    if _is_narrow(rows, capability):
        return LINEAR_DECODE_NARROW
    if capability[0] == 9:
        return _from_rows(_LINEAR_HOPPER_STEPS, rows)
    large = fast and rows >= _LARGE_BATCH
    return with_shared_columns(LINEAR_LARGE_BATCH_AMPERE if large else LINEAR_DECODE_AMPERE)


def step_tile(
    rows: int, dtype: torch.dtype, capability: tuple[int, int], fast: bool = False
) -> LinearTile:
    """Return the tile of one step of `rows` streams; `fast` as for `decode_tile`."""
    if fast and rows <= _VECTOR_ROWS[dtype.itemsize]:
        return _vector(STEP_VECTOR, rows)
    if dtype is torch.float32:
        return with_shared_columns(STEP_FLOAT32)
    if _is_narrow(rows, capability):
        return STEP_NARROW
    if capability[0] == 9:
        return _from_rows(_STEP_HOPPER_STEPS, rows)
    large = fast and rows >= _LARGE_BATCH
    return with_shared_columns(STEP_LARGE_BATCH_AMPERE if large else STEP_AMPERE)


def merged_tile(rows: int) -> LinearTile:
    """Return the tile of a step of at most `MERGED_ROWS` streams with the next projection."""
    return _vector(MERGED_STEP, rows)


def loadable(tile: LinearTile, inputs: int, dtype: torch.dtype) -> LinearTile:
    """Return a smaller tile if rows of `inputs` are no multiple of 16 bytes; the bits are the same.

    Such rows cannot be copied to shared memory asynchronously; they pass through registers.
    """
    if tile.vector or inputs * dtype.itemsize % 16 == 0 or dtype is torch.float32:
        return tile
    return with_shared_columns(
        replace(tile, rows=64, columns=min(tile.columns, 32), depth=32, warps=4)
    )


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Block sizes of one program of the attention.

    queries: adjacent queries of a sequence, at least 16, as the products need.
    keys: positions that are loaded together.
    depth: features of a head that are multiplied together.
    values: features of a head that the program mixes.
    warps: number of warps of 32 threads.
    """

    queries: int
    keys: int
    depth: int
    values: int
    warps: int


RING_SLOTS, RING_COLUMNS = 16, 128  # of a block of keys and values that are stored together


def attention_tile(size: int, dtype: torch.dtype) -> AttentionTile:
    """Return the tile for heads of `size` features, the same for any number of queries.

    One tile, because the sums of another one would round differently. A product in float32 keeps
    all numbers of its depth in registers.
    """
    padded = max(16, 1 << (size - 1).bit_length())
    if dtype is torch.float32:
        return AttentionTile(16, 32, min(padded, 32), min(padded, 64), 4)
    return AttentionTile(16, 32, min(padded, 128), min(padded, 128), 8 if padded > 64 else 4)


NORM_WIDTH = 16_384  # the widest row that one program holds


def norm_warps(width: int) -> int:
    """Return the number of warps of a norm's program, for a row padded to a block."""
    return min(max(width // 256, 1), 16)


def sample_warps(vocabulary: int) -> int:
    """Return the number of warps of the sampler's program, for a vocabulary padded to a block."""
    return min(max(vocabulary // 128, 1), 16)


def share_columns(columns: int | None) -> None:
    """Give all tiles of products these columns in this process; None: each its own."""
    global _shared_columns
    _shared_columns = columns


def shared_columns() -> int | None:
    """Return the columns of all tiles of products: `SHARED_COLUMNS`, or those that were chosen."""
    return _shared_columns


def with_shared_columns(tile: LinearTile) -> LinearTile:
    """Return the tile with the shared columns, if there are any."""
    return tile if _shared_columns is None else replace(tile, columns=_shared_columns)


def _from_rows(steps: tuple[tuple[int, LinearTile], ...], rows: int) -> LinearTile:
    return with_shared_columns(next(tile for least, tile in steps if max(rows, 1) >= least))


def _is_narrow(rows: int, capability: tuple[int, int]) -> bool:
    if _shared_columns is not None or rows > _NARROW_ROWS:
        return False
    from sruserve.kernels.triton.support import is_used  # with Triton, which others lack

    return is_used(Candidate.NARROW_STEP, capability)


def _vector(tiles: tuple[LinearTile, ...], rows: int) -> LinearTile:
    return next((tile for tile in tiles if tile.rows >= rows), tiles[-1])
