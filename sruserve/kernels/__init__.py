"""The operations that models are made of. `sru_scan` takes the fastest kernel that is here."""

import warnings
from functools import cache

from torch import Tensor

import sruserve.kernels.cpu as cpu
from sruserve.kernels.product import Product, packed_products
from sruserve.kernels.ragged import RaggedBatch, single
from sruserve.kernels.reference import reference_sru_scan

__all__ = ["Product", "RaggedBatch", "kernel_name", "packed_products", "single", "sru_scan"]


@cache
def kernel_name() -> str:
    """What runs the recurrence on the CPU: `c-<instruction set>`, or `reference` (told once)."""
    if cpu.available():
        return f"c-{cpu.instruction_set()}"
    warnings.warn(
        "sruserve was installed without its compiled CPU kernel, so the recurrence runs in plain "
        "torch: right, but many times slower. Install a C compiler and reinstall sruserve.",
        RuntimeWarning,
        stacklevel=2,
    )
    return "reference"


def sru_scan(
    u: Tensor,
    residual: Tensor | None,
    weight_c: Tensor,
    bias: Tensor,
    batch: RaggedBatch,
    column: int,
    *,
    scale: float = 1.0,
    tanh: bool = False,
    updated_reset: bool = False,
    backward_from: int | None = None,
) -> Tensor:
    """The SRU recurrence over a ragged batch, as `reference_sru_scan` defines it."""
    scan = reference_sru_scan if kernel_name() == "reference" else cpu.cpu_sru_scan
    return scan(
        u,
        residual,
        weight_c,
        bias,
        batch,
        column,
        scale=scale,
        tanh=tanh,
        updated_reset=updated_reset,
        backward_from=backward_from,
    )
