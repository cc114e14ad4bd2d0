"""The first checks on a new device: the server's own, and equal bits where only hardware decides.

Guarantees 1 to 4 need products whose bits do not depend on the tile, and norms whose bits do not
depend on the number of rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from bench.gpu.checks import EXACTLY, differing, dtypes, name, unlike
from bench.gpu.context import Bench
from bench.report.targets import Check
from sruserve.kernels.norm import Norm, NormKind
from sruserve.kernels.self_check import KernelMismatch, check_kernels
from sruserve.kernels.triton import tiles
from sruserve.kernels.triton.tiles import LinearTile

_TILES = {  # every width that is shipped or tried, and the tiles of other GPUs
    "16 bits": (
        LinearTile(64, 16, 128, 4, 4),
        LinearTile(64, 8, 128, 4, 4),
        LinearTile(64, 32, 64, 4, 4),
        LinearTile(64, 32, 128, 4, 4),
        LinearTile(64, 64, 64, 5, 4),
        LinearTile(64, 64, 128, 4, 4),
        LinearTile(128, 64, 64, 4, 8),
        LinearTile(128, 128, 64, 4, 8),
        LinearTile(128, 256, 64, 4, 8),
    ),
    "float32": (LinearTile(16, 16, 32, 3, 4), LinearTile(64, 64, 16, 3, 4)),
}


def self_checks(bench: Bench) -> Iterator[Check]:
    """Run what a server runs before it serves from a GPU, in every dtype."""
    size: dict[str, Any] = {"width": 32, "single_steps": 2} if bench.quick else {}
    for dtype in dtypes(bench):
        wrong = 0
        try:
            check_kernels(bench.device, dtype, **size)
        except KernelMismatch as error:
            print(f"RED: {error}", flush=True)
            wrong = 1
        yield Check(f"the server's own check, {name(dtype)}: mismatches", wrong, "", EXACTLY)


def bit_checks(bench: Bench) -> Iterator[Check]:
    """Check the bits of products in all tiles, and of norms of any number of rows."""
    for dtype in dtypes(bench):
        chosen = _TILES["float32" if dtype is torch.float32 else "16 bits"]
        yield from _tiles(bench, dtype, chosen[:2] if bench.quick else chosen)
        yield _many_rows(bench, dtype)
        for kind in NormKind:
            yield _norm(bench, dtype, kind)


def _tiles(bench: Bench, dtype: torch.dtype, chosen: Sequence[LinearTile]) -> Iterator[Check]:
    """Compare each tile with the first one; with `tiles.share_columns`, all have the same."""
    from sruserve.kernels.triton.linear import triton_linear

    rows, inputs, outputs = (5, 40, 24) if bench.quick else (300, 2048, 1536)
    x = bench.random(rows, inputs, dtype=dtype)
    weight = bench.random(outputs, inputs, dtype=dtype, spread=inputs**-0.5)
    each = [tiles.with_shared_columns(tile) for tile in chosen]
    first = triton_linear(x, weight, tile=each[0])
    for tile in each[1:]:
        size = f"{tile.rows} x {tile.columns} x {tile.depth}"
        changed = unlike(bench, triton_linear(x, weight, tile=tile), first)
        label = f"product, {name(dtype)}: elements that the tile {size} changes"
        yield Check(label, changed, "", EXACTLY)


def _many_rows(bench: Bench, dtype: torch.dtype) -> Check:
    """Compare the product of so many rows as the server chooses it with one of the first tile."""
    from sruserve.kernels.triton.linear import capability, triton_linear

    rows, inputs, outputs = (5, 40, 24) if bench.quick else (3001, 1024, 3072)
    x = bench.random(rows, inputs, dtype=dtype)
    weight = bench.random(outputs, inputs, dtype=dtype, spread=inputs**-0.5)
    tile = tiles.linear_tile(outputs, dtype, capability(bench.device))
    changed = unlike(bench, triton_linear(x, weight), triton_linear(x, weight, tile=tile))
    label = f"product, {name(dtype)}: elements that many rows change"
    return Check(label, changed, "", EXACTLY)


def _norm(bench: Bench, dtype: torch.dtype, kind: NormKind) -> Check:
    changed = 0.0
    for width in (40,) if bench.quick else (500, 512, 2048):
        x = bench.random(300, width, dtype=dtype)
        norm = Norm(bench.random(width, dtype=dtype), None, kind)
        many = norm(x)
        changed += sum(differing(norm(x[:few]), many[:few]) for few in (1, 2, 17, 64, 129))
    label = f"{kind.name} norm, {name(dtype)}: elements that other rows change"
    return Check(label, changed, "", EXACTLY)
