"""The products, steps and samplers that ship, for `tests.kernels.aot` to compile."""

from collections.abc import Iterator
from dataclasses import astuple, replace
from typing import Any

import torch
import triton

from sruserve.kernels.cell import Activation, Cell, Kind
from sruserve.kernels.norm import NormKind
from sruserve.kernels.slots import WINDOW
from sruserve.kernels.triton import tiles
from sruserve.kernels.triton.dependent import begins_early
from sruserve.kernels.triton.descriptors import descriptor_kernel
from sruserve.kernels.triton.linear import linear_kernel
from sruserve.kernels.triton.norm import norm_kernel
from sruserve.kernels.triton.sample import sample_kernel
from sruserve.kernels.triton.step import step_kernel
from sruserve.kernels.triton.tiles import LinearTile
from tests.kernels.aot import CAPABILITIES, EVERY_CAPABILITY, Configuration

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = {BF16: "bf16", FP16: "fp16", FP32: "fp32"}
PLACES = {80: (8, 0), 90: (9, 0), 100: (10, 0)}  # as torch has the capabilities
# One kind of instruction in every kernel of a capability, so that all of them round alike.
MMA = {
    80: r"\A(?![\s\S]*wgmma)(?![\s\S]*mma\.sync(?!\.aligned\.m16n8k16))[\s\S]*mma\.sync",
    90: r"\A(?![\s\S]*mma\.sync\.)(?![\s\S]*wgmma\.mma_async\S*n\d+k(?!16))[\s\S]*wgmma\.mma_async",
    100: r"\A(?![\s\S]*wgmma)(?![\s\S]*mma\.sync\.)[\s\S]*tcgen05\.mma",
}
FMA = dict.fromkeys(PLACES, r"fma\.rn\.f32")
# After the last load the output is stored, and behind a barrier the states, which another warp may
# have loaded from the same place.
_NO_LOAD = r"(?:(?!(?:ld|atom|red)\.global)[\s\S])*"
SETTLED = (
    rf"ld\.global{_NO_LOAD}st\.global{_NO_LOAD}bar\.sync{_NO_LOAD}st\.global(?![\s\S]*ld\.global)"
)
# Before the wait nothing is read that another kernel may write.
EARLY = r"\A(?=(?:(?!ld\.global|cp\.async|st\.global)[\s\S])*griddepcontrol\.wait)[\s\S]*?"
_MIDDLE_BATCH, _LARGE_BATCH = 256, 1024  # streams
WIDTH = 2048
PROJECTED = 512
SRU = Cell(activation=Activation.TANH)
SRU_OF_4 = Cell(blocks=4, activation=Activation.TANH)
_LRN = Cell(kind=Kind.LRN, activation=Activation.TANH)
_QRNN = Cell(kind=Kind.QRNN)


def linear_configurations() -> Iterator[Configuration]:
    """Prefill, one step and few rows; with tails and, last, inputs that 16 bytes do not divide."""
    for capability in CAPABILITIES:
        place = PLACES[capability]
        for dtype, outputs in ((BF16, 3 * WIDTH), (FP32, 3 * WIDTH), (FP16, 94)):
            tile = tiles.linear_tile(outputs, dtype, place)
            yield product_form(tile, dtype, PROJECTED, outputs, capability)
        for inputs, outputs in ((WIDTH, PROJECTED), (200, 94), (203, 3 * WIDTH)):
            tile = tiles.linear_tile(outputs, BF16, place)
            yield product_form(tile, BF16, inputs, outputs, capability)
        for dtype, inputs in ((BF16, WIDTH), (BF16, 128), (FP32, 24)):  # the last in one stage
            logits = tiles.decode_tile(1, dtype, place)
            yield product_form(logits, dtype, inputs, 256, capability, head=True)
        for dtype, rows in ((BF16, 1), (FP32, 1), (BF16, _MIDDLE_BATCH), (BF16, _LARGE_BATCH)):
            tile = tiles.decode_tile(rows, dtype, place, fast=rows > _MIDDLE_BATCH)
            yield product_form(tile, dtype, WIDTH, PROJECTED, capability, index=True)
    for dtype, rows in ((BF16, 1), (BF16, 2), (FP32, 8)):
        tile = tiles.decode_tile(rows, dtype, (9, 0), fast=True)
        yield product_form(tile, dtype, WIDTH, PROJECTED, 90, index=True)
    blackwell = PLACES[100]
    for dtype in (BF16, FP32):
        tile = tiles.linear_tile(3 * WIDTH, dtype, blackwell)
        yield product_form(tile, dtype, PROJECTED, 3 * WIDTH, 100)
        logits = tiles.decode_tile(1, dtype, blackwell)
        yield product_form(logits, dtype, WIDTH, 256, 100, head=True)
    for rows in (1, _LARGE_BATCH):
        tile = tiles.decode_tile(rows, BF16, blackwell, fast=rows > 1)
        yield product_form(tile, BF16, WIDTH, PROJECTED, 100, index=True)


def descriptor_configurations() -> Iterator[Configuration]:
    """Products whose tiles the copy engine of Hopper moves."""
    tile = tiles.LINEAR_DESCRIPTORS
    blocks = {
        "x": (tile.rows, tile.depth),
        "weight": (tile.columns, tile.depth),
        "out": (tile.rows, tile.columns),
    }
    for dtype, inputs in (("bf16", PROJECTED), ("fp16", WIDTH)):
        yield Configuration(
            name=f"descriptors-{dtype}-{inputs}",
            kernel=descriptor_kernel,
            signature={"rows": "i32"}
            | {each: f"tensordesc<{dtype}{list(size)}>" for each, size in blocks.items()},
            constants={"IN": inputs, "OUT": 3 * WIDTH, "ROWS": tile.rows, "GROUP": 8}
            | {"COLUMNS": tile.columns, "DEPTH": tile.depth},
            options=_options(tile),
            contains={90: rf"(?=[\s\S]*cp\.async\.bulk\.tensor){MMA[90]}"},
            capabilities=(90,),
        )


def step_configurations() -> Iterator[Configuration]:
    """Every tile, in layers with their own highway input, with the residual, and gated alone.

    The residual saves registers: each tile has it for one of two capabilities.
    """
    for turn, capability in enumerate(CAPABILITIES):
        place = PLACES[capability]
        counts = ((BF16, 1), (BF16, _MIDDLE_BATCH), (BF16, _LARGE_BATCH), (FP32, 1))
        for k, (dtype, rows) in enumerate(counts):
            for cell in (SRU, SRU_OF_4) if (turn + k) % 2 else (SRU_OF_4,):
                tile = tiles.step_tile(rows, dtype, place, fast=rows > _MIDDLE_BATCH)
                yield step_form(tile, dtype, PROJECTED, WIDTH, cell, capability)
        yield step_form(tiles.step_tile(1, FP16, place), FP16, PROJECTED, WIDTH, SRU, capability)
        for cell, rows in ((_LRN, 1), (_QRNN, _LARGE_BATCH)):
            tile = tiles.step_tile(rows, BF16, place, fast=rows > 1)
            yield step_form(tile, BF16, PROJECTED, WIDTH, cell, capability)
        yield step_form(tiles.step_tile(1, BF16, place), BF16, 64, 128, _LRN, capability)
        # In one stage, and with nothing between the product and the cell's own sums.
        bare = step_form(tiles.step_tile(1, FP32, place), FP32, 24, 64, _LRN, capability)
        without = {"weight_bias": None}
        yield replace(bare, name=f"{bare.name}-bare", constants=bare.constants | without)
        for inputs, rows in ((200, 1), (203, 1), (203, _LARGE_BATCH)):
            tile = tiles.step_tile(rows, BF16, place, fast=rows > 1)
            yield step_form(tile, BF16, inputs, 94, SRU, capability, index=True)
    for dtype, rows in ((BF16, 1), (BF16, _LARGE_BATCH), (FP32, 1)):
        tile = tiles.step_tile(rows, dtype, PLACES[100], fast=rows > 1)
        yield step_form(tile, dtype, PROJECTED, WIDTH, SRU_OF_4, 100)
    for dtype, rows, cell, capabilities in (
        (BF16, 1, SRU, EVERY_CAPABILITY),
        (BF16, 2, SRU_OF_4, (90,)),
        (FP32, 8, SRU, (80, 90)),
    ):
        for capability in capabilities:
            tile = tiles.step_tile(rows, dtype, PLACES[capability], fast=True)
            step = step_form(tile, dtype, PROJECTED, WIDTH, cell, capability)
            # Several warps hold the same states, which are often replaced in place.
            yield replace(step, contains={capability: step.contains[capability] + SETTLED})


def sample_configurations() -> Iterator[Configuration]:
    """The smallest vocabulary, one of characters, one of bytes, and the largest.

    The most takes longest by far: for the capability whose blocks have less shared memory alone.
    """
    for vocabulary, capabilities in (
        (5, (80,)),
        (95, (90,)),
        (256, EVERY_CAPABILITY),
        (tiles.SAMPLE_VOCABULARY, (80,)),
    ):
        block = max(32, triton.next_power_of_2(vocabulary))
        yield Configuration(
            name=f"sample-{vocabulary}",
            kernel=sample_kernel,
            signature={
                "logits": "*fp32",
                **dict.fromkeys(["temperature", "top_p", "min_p", "penalty"], "*fp32"),
                "top_k": "*i32",
                **dict.fromkeys(["window", "position", "out", "history"], "*i64"),
                **dict.fromkeys(["seed", "choice", "draw", "limits", "target"], "*i64"),
                **dict.fromkeys(["streams", "steps", "rows"], "i32"),
            },
            constants={
                "uniforms": None,
                "VOCABULARY": vocabulary,
                "WINDOW": WINDOW,
                "PER_STEP": False,
                "BLOCK": block,
            },
            options={"num_warps": tiles.sample_warps(block), "enable_fp_fusion": False},
            capabilities=capabilities,
        )


def norm_configurations() -> Iterator[Configuration]:
    """Every kind, of a narrow row and of the widest."""
    for kind, dtype, width in (
        (NormKind.LAYER, BF16, 2048),
        (NormKind.RMS, FP16, 500),
        (NormKind.STD, FP32, tiles.NORM_WIDTH),
        (NormKind.RMS, BF16, 24),
    ):
        block = triton.next_power_of_2(width)
        yield Configuration(
            name=f"norm-{kind.name.lower()}-{DTYPES[dtype]}-{width}",
            kernel=norm_kernel,
            signature=dict.fromkeys(["x", "weight", "bias", "out"], f"*{DTYPES[dtype]}")
            | {"epsilon": "fp32"},
            constants={"N": width, "BLOCK": block, "KIND": int(kind)}
            | ({"bias": None} if kind is NormKind.RMS else {}),
            options={"num_warps": tiles.norm_warps(block), "enable_fp_fusion": False},
            capabilities=EVERY_CAPABILITY,
        )


def product_form(
    tile: LinearTile,
    dtype: torch.dtype,
    inputs: int,
    outputs: int,
    capability: int,
    *,
    index: bool = False,
    head: bool = False,
) -> Configuration:
    tile = tiles.loadable(tile, inputs, dtype)
    early = begins_early(tile, PLACES[capability])
    kind = DTYPES[dtype]
    constants: dict[str, Any] = {} if index else {"index": None}
    if not head:
        constants["bias"] = None
    return Configuration(
        name=f"product-{kind}-{inputs}-{outputs}-{_name(tile)}",
        kernel=linear_kernel,
        signature={
            **dict.fromkeys(["x", "weight", "bias"], f"*{kind}"),
            "out": "*fp32" if head else f"*{kind}",
            "index": "*i64",
            "picks": "i32",
        },
        constants=constants
        | {"IN": inputs, "OUT": outputs, "ROWS": tile.rows, "COLUMNS": tile.columns}
        | {
            "DEPTH": _depth(tile, inputs),
            "GROUP": 8,
            "VECTOR": tile.vector,
            "DEPENDENT": early,
        },
        options=_options(tile) | ({"launch_pdl": True} if early else {}),
        **_demands(tile, dtype, inputs, capability),
    )


def step_form(
    tile: LinearTile,
    dtype: torch.dtype,
    inputs: int,
    width: int,
    cell: Cell,
    capability: int,
    *,
    index: bool = False,
) -> Configuration:
    tile = tiles.loadable(tile, inputs, dtype)
    early = begins_early(tile, PLACES[capability])
    kind = DTYPES[dtype]
    absent = [] if index else ["x_index", "residual_index"]
    if not cell.takes_residual:
        absent += ["residual", "residual_index"]
    # As products have them: SRU no bias, the others one.
    absent += ["weight_bias"] if cell.gated_by_state else ["weight_c", "bias"]
    return Configuration(
        name=f"step-{cell.kind.name.lower()}{cell.blocks}-{kind}-{inputs}-{width}-{_name(tile)}",
        kernel=step_kernel,
        signature={
            **dict.fromkeys(["x", "weight", "weight_bias", "residual", "out"], f"*{kind}"),
            **dict.fromkeys(["weight_c", "bias", "states"], "*fp32"),
            **dict.fromkeys(["x_index", "residual_index", "source", "target"], "*i64"),
            **dict.fromkeys(["rows", "state_width", "column"], "i32"),
            **dict.fromkeys(["scale", "keep"], "fp32"),
        },
        constants=dict.fromkeys(absent)
        | {"IN": inputs, "WIDTH": width, "KIND": int(cell.kind), "BLOCKS": cell.blocks}
        | {"ACTIVATION": int(cell.activation), "UPDATED_RESET": cell.updated_reset}
        | {"ROWS": tile.rows, "CHANNELS": tile.columns, "DEPTH": _depth(tile, inputs)}
        | {"VECTOR": tile.vector, "DEPENDENT": early},
        options=_options(tile) | ({"launch_pdl": True} if early else {}),
        **_demands(tile, dtype, inputs, capability),
    )


def _name(tile: LinearTile) -> str:
    return "x".join(map(str, astuple(tile)[:5]))


def _depth(tile: LinearTile, inputs: int) -> int:
    return min(tile.depth, triton.next_power_of_2(inputs)) if tile.vector else tile.depth


def _options(tile: LinearTile) -> dict[str, Any]:
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    return options | {"enable_fp_fusion": tile.vector}


def _demands(tile: LinearTile, dtype: torch.dtype, inputs: int, capability: int) -> dict[str, Any]:
    """The required result: one instruction, and loads that run ahead where they can."""
    copied = not tile.vector and inputs > tile.depth and inputs * dtype.itemsize % 16 == 0
    patterns: dict[int, str] = {} if tile.vector else FMA if dtype is FP32 else MMA
    begin = EARLY if begins_early(tile, PLACES[capability]) else ""
    return {
        "async_copies": 4 if copied else 0,
        "contains": {capability: begin + patterns.get(capability, "")},
        "sums_from_zero": True,
        "capabilities": (capability,),
    }
