"""The variants that no device has judged, for `tests.kernels.aot` to compile.

Each for every capability on which it may be chosen, but for large tiles: their instructions are
those of the tiles that ship.
"""

from collections.abc import Iterator
from dataclasses import replace

from sruserve.kernels.candidates import Candidate
from sruserve.kernels.cell import Cell
from sruserve.kernels.triton import tiles
from sruserve.kernels.triton.dependent import begins_early
from sruserve.kernels.triton.merged import merged_kernel
from sruserve.kernels.triton.support import why_not
from tests.kernels.aot import Configuration
from tests.kernels.aot_linear import (
    BF16,
    EARLY,
    PLACES,
    PROJECTED,
    SETTLED,
    SRU,
    SRU_OF_4,
    WIDTH,
    product_form,
    step_form,
)


def candidate_configurations() -> Iterator[Configuration]:
    """Narrow tiles, and steps that are merged with the next projection."""
    for capability, place in PLACES.items():
        narrow = product_form(tiles.LINEAR_DECODE_NARROW, BF16, WIDTH, PROJECTED, capability)
        yield _of_narrow_tile(narrow, place)
        narrow = step_form(tiles.STEP_NARROW, BF16, PROJECTED, WIDTH, SRU, capability)
        yield _of_narrow_tile(narrow, place)
        yield _candidate(_merged_form(1, SRU, capability, from_sums=True))
    yield _candidate(_merged_form(tiles.MERGED_ROWS, SRU_OF_4, 90))


def _merged_form(
    rows: int, cell: Cell, capability: int, *, from_sums: bool = False
) -> Configuration:
    """A step with the next layer's projection, whose additions to the sums return nothing."""
    tile = tiles.merged_tile(rows)
    early = begins_early(tile, PLACES[capability])
    absent = ["x_index", "residual_index"] + ([] if cell.takes_residual else ["residual"])
    return Configuration(
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
        | {"DEPTH": tile.depth, "DEPENDENT": early},
        options={"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": True}
        | ({"launch_pdl": True} if early else {}),
        contains={
            capability: (EARLY if early else "")
            + SETTLED
            + r"[\s\S]*(?:atom|red)\.global\S*\.add\.u64"
        },
        capabilities=(capability,),
    )


def _candidate(configuration: Configuration) -> Configuration:
    return replace(configuration, name=f"candidate-{configuration.name}")


def _of_narrow_tile(configuration: Configuration, place: tuple[int, int]) -> Configuration:
    """Its instruction is that of all tiles under each Triton that may choose it."""
    if why_not(Candidate.NARROW_STEP, place):
        configuration = replace(configuration, contains={})
    # One block waits for memory while another one computes; Ampere's shared memory holds one.
    return _candidate(replace(configuration, blocks=1 if place < (9, 0) else 2))
