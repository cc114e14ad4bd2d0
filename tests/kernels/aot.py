"""The forms of every shipped Triton kernel, which are compiled on a machine without a GPU.

To add a kernel, write a function that yields a `Configuration` for every form its launcher can
choose (a covering set where that is many), built from the tables in
`sruserve.kernels.triton.tiles`, and name it in `configurations`; then `make compiled` stores what
the compiler says of it. `signature` and `constants` together name every parameter of the kernel;
pointers count as 16-byte aligned, and a None in `constants` is an argument left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from sruserve.kernels.cell import Activation, Cell, Kind
from sruserve.kernels.triton import tiles
from sruserve.kernels.triton.scan import scan_kernel

CAPABILITIES = (80, 90)
EVERY_CAPABILITY = (80, 90, 100)


@dataclass(frozen=True)
class Configuration:
    """One kernel as a launcher may compile it, and the required properties of the result.

    signature: the type of each run-time parameter, such as "*bf16", "i32" or "fp32".
    constants: the value of each compile-time parameter.
    options: as for a launch: num_warps, num_stages, enable_fp_fusion.
    async_copies: the fewest `cp.async` that the PTX must hold.
    registers: the most that a thread may take.
    barriers: the most `bar.sync` in the PTX; values that move between threads cost two each.
    contains: capability -> a pattern that must occur in the PTX, such as an MMA instruction.
    blocks: the fewest that must fit on a multiprocessor at a time.
    sums_from_zero: whether every product's sum has to start from zero, and not from a bias.
    capabilities: what it is compiled for.
    """

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, Any]
    async_copies: int = 0
    registers: int = 255
    barriers: int = 1000
    contains: dict[int, str] = field(default_factory=dict)
    blocks: int = 1
    sums_from_zero: bool = False
    capabilities: tuple[int, ...] = CAPABILITIES


def configurations() -> Iterator[Configuration]:
    """Every kernel that ships, in every shape a launcher can choose."""
    # They describe them in this module's words.
    from tests.kernels import aot_attention, aot_candidates, aot_linear

    return chain(
        scan_configurations(),
        aot_linear.linear_configurations(),
        aot_linear.descriptor_configurations(),
        aot_linear.step_configurations(),
        aot_linear.sample_configurations(),
        aot_linear.norm_configurations(),
        aot_attention.attention_configurations(),
        aot_candidates.candidate_configurations(),
    )


def forms() -> dict[str, tuple[Configuration, int]]:
    """Every configuration with each of its capabilities, by name; launchers share some of them."""
    named: dict[str, tuple[Configuration, int]] = {}
    for configuration in configurations():
        for capability in configuration.capabilities:
            name, form = f"{configuration.name}-sm{capability}", (configuration, capability)
            assert named.setdefault(name, form) == form, f"{name} is two different forms"
    return named


def scan_configurations() -> Iterator[Configuration]:
    """Every tile and dtype in every form, and for each capability in one of them or more."""
    kinds = [
        ("fp32", tiles.SCAN_FLOAT32, CAPABILITIES),
        ("bf16", tiles.SCAN_16_BIT, CAPABILITIES),
        ("fp16", tiles.SCAN_16_BIT, (90,)),
        ("bf16", tiles.SCAN_16_BIT_FEW, (90,)),
        ("fp16", tiles.SCAN_16_BIT_FEW, (80,)),
    ]
    forms = {"residual": (3, True), "no-skip": (3, False), "highway-block": (4, False)}
    for k, (dtype, tile, capabilities) in enumerate(kinds):
        for f, (form, (blocks, residual)) in enumerate(forms.items()):
            turn = k + f
            split = (512, 256, 0)[turn % 3]
            name = f"scan-{dtype}-{tile.channels}-{form}-{split}"
            activation = Activation(turn % 4)
            cell = Cell(blocks=blocks, activation=activation, updated_reset=turn // 2 % 2 == 1)
            configuration = scan_form(name, dtype, tile, 512, split, cell, residual)
            yield replace(configuration, capabilities=capabilities[turn % len(capabilities) :][:1])
    others = {
        "lrn": Cell(kind=Kind.LRN, activation=Activation.TANH),
        "olrn": Cell(kind=Kind.LRN, blocks=4),
        "qrnn": Cell(kind=Kind.QRNN, blocks=2),
        "qrnn-gated": Cell(kind=Kind.QRNN),
        "qrnn-residual": Cell(kind=Kind.QRNN),
        "qrnn-highway": Cell(kind=Kind.QRNN, blocks=4),
        "sum": Cell(kind=Kind.SUM, blocks=1),
        "max": Cell(kind=Kind.MAX, blocks=2),
        "shift": Cell(kind=Kind.SHIFT, blocks=1),
        "decay": Cell(kind=Kind.DECAY, blocks=2),
    }
    for k, (kind, cell) in enumerate(others.items()):
        dtype, tile, _ = kinds[k % 3]
        name = f"scan-{kind}-{dtype}"
        yield scan_form(name, dtype, tile, 512, (512, 256)[k % 2], cell, kind.endswith("residual"))
    for width, split in ((500, 500), (504, 252), (4, 2)):  # blocks that the width does not fill
        name = f"scan-bf16-of-{width}-{split}"
        yield scan_form(name, "bf16", tiles.SCAN_16_BIT, width, split, Cell(), True)
    for dtype, tile in (
        ("fp32", tiles.SCAN_FLOAT32),
        ("bf16", tiles.SCAN_16_BIT),
        ("bf16", tiles.SCAN_16_BIT_FEW),
    ):
        name = f"scan-{dtype}-{tile.channels}"
        newest = scan_form(name, dtype, tile, 512, 256, Cell(), True)
        yield replace(newest, capabilities=(100,))
    # Rows that no 4-byte copy can read: as correct, but not as fast.
    odd = scan_form("scan-bf16-of-501", "bf16", tiles.SCAN_16_BIT, 501, 501, Cell(), True)
    yield replace(odd, async_copies=0)


def scan_form(
    name: str,
    dtype: str,
    tile: tiles.ScanTile,
    width: int,
    split: int,
    cell: Cell,
    residual: bool,
) -> Configuration:
    constants: dict[str, Any] = {
        "WIDTH": width,
        "SPLIT": split,
        "KIND": int(cell.kind),
        "BLOCKS": cell.blocks,
        "ACTIVATION": int(cell.activation),
        "UPDATED_RESET": cell.updated_reset,
        "CHANNELS": tile.channels,
        "STEPS": tile.steps,
        "STAGES": tile.stages,
    }
    if not residual:
        constants["residual"] = None
    if not cell.gated_by_state:
        constants |= {"weight_c": None, "bias": None}
    row = tile.channels * (4 if dtype == "fp32" else 2)
    return Configuration(
        name,
        scan_kernel,
        dict.fromkeys(("u", "residual", "h"), f"*{dtype}")
        | dict.fromkeys(("weight_c", "bias", "states"), "*fp32")
        | dict.fromkeys(("offsets", "source", "target"), "*i64")
        | {"state_width": "i32", "column": "i32", "scale": "fp32", "keep": "fp32"},
        constants,
        {"num_warps": tile.warps, "enable_fp_fusion": False},
        # Each stage but the one worked on is asked for once ahead of the loop, and one in it.
        async_copies=tile.stages * (4 * tile.steps * row // (16 * 32 * tile.warps)),
        registers=128,
        barriers=8,
        blocks=7,
        capabilities=(90,),
    )
