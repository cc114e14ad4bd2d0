"""The attention that ships, for `tests.kernels.aot` to compile."""

from collections.abc import Iterator
from typing import Any

import torch

from sruserve.kernels.triton import tiles
from sruserve.kernels.triton.attention_kernels import attention_kernel, ring_kernel
from tests.kernels.aot import EVERY_CAPABILITY, Configuration
from tests.kernels.aot_linear import BF16, DTYPES, FP16, FP32

_MMA = r"mma\.sync\.aligned\.m16n8k16"  # too few queries for larger instructions


def attention_configurations() -> Iterator[Configuration]:
    """A step and whole inputs; wide and narrow heads; with a second memory; without a window."""
    yield _attention("step", BF16, 512, 1, window=256, one_step=True)
    yield _attention("memory", BF16, 512, 1, window=256, memory=True)
    yield _attention("float32", FP32, 512, 8, window=256, memory=True)
    yield _attention("whole", FP16, 60, 3, window=0)
    yield _ring("memory", BF16, 512, window=256, memory=True)
    yield _ring("float32", FP32, 60, window=7, memory=False)


def _attention(
    name: str,
    dtype: torch.dtype,
    width: int,
    heads: int,
    *,
    window: int,
    memory: bool = False,
    one_step: bool = False,
) -> Configuration:
    size, kind = width // heads, DTYPES[dtype]
    tile = tiles.attention_tile(size, dtype)
    constants: dict[str, Any] = {} if memory else {"memory": None}
    return Configuration(
        name=f"attention-{name}-{kind}-{size}-{window}",
        kernel=attention_kernel,
        signature={
            **dict.fromkeys(["q", "keys_values", "memory", "residual", "out"], f"*{kind}"),
            **dict.fromkeys(["offsets", "source"], "*i64"),
            **dict.fromkeys(["sequences", "state_width", "column"], "i32"),
            **dict.fromkeys(["alpha", "scale"], "fp32"),
            "states": "*fp32",
            "counts": "*i32",
        },
        constants=constants
        | {"WIDTH": width, "SIZE": size, "WINDOW": window, "RING": _ring_of(width, window, memory)}
        | {"ONE_STEP": one_step, "QUERIES": tile.queries, "KEYS": tile.keys}
        | {"DEPTH": tile.depth, "VALUES": tile.values},
        options={"num_warps": tile.warps, "enable_fp_fusion": False},
        contains={} if dtype is FP32 else dict.fromkeys(EVERY_CAPABILITY, _MMA),
        capabilities=EVERY_CAPABILITY,
    )


def _ring(name: str, dtype: torch.dtype, width: int, *, window: int, memory: bool) -> Configuration:
    kind = DTYPES[dtype]
    constants: dict[str, Any] = {} if memory else {"memory": None}
    return Configuration(
        name=f"ring-{name}-{kind}-{width}-{window}",
        kernel=ring_kernel,
        signature={
            **dict.fromkeys(["keys_values", "memory"], f"*{kind}"),
            **dict.fromkeys(["offsets", "source", "target"], "*i64"),
            **dict.fromkeys(["state_width", "column"], "i32"),
            "states": "*fp32",
            "counts": "*i32",
        },
        constants=constants
        | {"WIDTH": width, "WINDOW": window, "RING": _ring_of(width, window, memory)}
        | {"SLOTS": tiles.RING_SLOTS, "COLUMNS": tiles.RING_COLUMNS},
        options={"num_warps": 4, "enable_fp_fusion": False},
        registers=96,
        capabilities=EVERY_CAPABILITY,
    )


def _ring_of(width: int, window: int, memory: bool) -> int:
    return 0 if not window else (4 if memory else 2) * width
