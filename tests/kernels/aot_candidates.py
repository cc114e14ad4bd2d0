"""The variants that no device has judged, for `tests.kernels.aot` to compile.

Each for every capability on which it may be chosen, by every Triton, but for large tiles: their
instructions are those of the tiles that ship.
"""

from collections.abc import Iterator
from dataclasses import replace

from sruserve.kernels.candidates import Candidate
from sruserve.kernels.cell import Cell
from sruserve.kernels.triton import tiles
from sruserve.kernels.triton.merged import merged_kernel
from sruserve.kernels.triton.support import why_not
from tests.kernels.aot import EVERY_CAPABILITY, Configuration, scan_form
from tests.kernels.aot_linear import (
    BF16,
    PLACES,
    PROJECTED,
    SRU,
    SRU_OF_4,
    WIDTH,
    product_form,
    step_form,
)

_CROWD = 1024  # streams
_EARLY = r"\A(?=[\s\S]*griddepcontrol\.wait)[\s\S]*?"


def candidate_configurations() -> Iterator[Configuration]:
    """Steps that begin early where a GPU has that, and narrow, wide and large tiles."""
    wide = scan_form("scan-bf16-wide", "bf16", tiles.SCAN_16_BIT_WIDE, 512, 512, Cell(), True)
    yield _candidate(replace(wide, barriers=1000, capabilities=EVERY_CAPABILITY))  # two warps
    for capability, place in PLACES.items():
        early = not why_not(Candidate.DEPENDENT_LAUNCH, place)
        narrow = product_form(
            tiles.LINEAR_DECODE_NARROW, BF16, WIDTH, PROJECTED, capability, dependent=early
        )
        yield _of_narrow_tile(narrow, place, early)
        narrow = step_form(
            tiles.STEP_NARROW, BF16, PROJECTED, WIDTH, SRU, capability, dependent=early
        )
        yield _of_narrow_tile(narrow, place, early)
        if early:
            shipped = tiles.step_tile(1, BF16, place)
            step = step_form(shipped, BF16, PROJECTED, WIDTH, SRU, capability, dependent=True)
            yield _candidate(_begins_early(step))
        large = tiles.step_tile(_CROWD, BF16, place, fast=True)
        large_step = step_form(large, BF16, PROJECTED, WIDTH, SRU, capability)
        yield _candidate(large_step, every_triton=False)
        large = tiles.decode_tile(_CROWD, BF16, place, fast=True)
        large_product = product_form(large, BF16, WIDTH, PROJECTED, capability)
        yield _candidate(large_product, every_triton=False)
        yield _candidate(_merged_form(1, SRU, capability, early, from_sums=True))
    yield _candidate(_merged_form(tiles.MERGED_ROWS, SRU_OF_4, 90, dependent=True))


def _merged_form(
    rows: int, cell: Cell, capability: int, dependent: bool, *, from_sums: bool = False
) -> Configuration:
    """A step with the next layer's projection, whose additions to the sums return nothing."""
    tile = tiles.merged_tile(rows)
    absent = ["x_index", "residual_index"] + ([] if cell.takes_residual else ["residual"])
    wanted = Configuration(
        name=f"merged-sru{cell.blocks}-{rows}",
        kernel=merged_kernel,
        signature={
            **dict.fromkeys(["weight", "residual", "out", "next_weight"], "*bf16"),
            **dict.fromkeys(["weight_c", "bias", "states"], "*fp32"),
            **dict.fromkeys(["x_index", "residual_index", "source", "target"], "*i64"),
            **dict.fromkeys(["next_sums", "clear"], "*i64"),
            **dict.fromkeys(["rows", "clears", "state_width", "column"], "i32"),
            "x": "*i64" if from_sums else "*bf16",
            **dict.fromkeys(["scale", "limit"], "fp32"),
        },
        constants=dict.fromkeys(absent)
        | {"IN": PROJECTED, "WIDTH": WIDTH, "NEXT": PROJECTED, "NEXTS": PROJECTED}
        | {
            "BLOCKS": cell.blocks,
            "ACTIVATION": int(cell.activation),
            "UPDATED_RESET": cell.updated_reset,
        }
        | {"FROM_SUMS": from_sums, "ROWS": tile.rows, "CHANNELS": tile.columns}
        | {"DEPTH": tile.depth, "DEPENDENT": dependent},
        options={"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": True}
        | ({"launch_pdl": True} if dependent else {}),
        contains={capability: r"(?:atom|red)\.global\S*\.add\.u64"},
        capabilities=(capability,),
    )
    return _begins_early(wanted) if dependent else wanted


def _candidate(wanted: Configuration, *, every_triton: bool = True) -> Configuration:
    return replace(wanted, name=f"candidate-{wanted.name}", every_triton=every_triton)


def _of_narrow_tile(wanted: Configuration, place: tuple[int, int], early: bool) -> Configuration:
    """Its instruction is that of all tiles under each Triton that may choose it."""
    if why_not(Candidate.NARROW_STEP, place):
        wanted = replace(wanted, contains={})
    return _candidate(_begins_early(wanted) if early else wanted)


def _begins_early(wanted: Configuration) -> Configuration:
    contains = {each: wanted.contains.get(each, "") for each in wanted.capabilities}
    return replace(wanted, contains={each: _EARLY + pattern for each, pattern in contains.items()})
