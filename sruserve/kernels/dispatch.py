"""Choose the recurrence's kernel: Triton's on a GPU, the compiled one on a CPU, or plain torch."""

import os
import warnings
from functools import cache

import torch
from torch import Tensor

import sruserve.kernels.cpu as cpu
from sruserve.kernels.cell import Cell
from sruserve.kernels.devices import CPU
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.reference import reference_scan

INTERPRETER = "triton-interpreter"
# Triton's own switch, and what it takes for yes: its kernels then run on CPU tensors, in Python.
_INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")


def uses_triton(device: torch.device) -> bool:
    """Whether work on `device` goes to the Triton kernels."""
    return device.type == "cuda" or _INTERPRETED


def kernel_name(device: torch.device = CPU) -> str:
    """What runs the recurrence: `triton`, `c-<instruction set>` or `reference` (told once).

    `triton-interpreter` is Triton without a GPU: for tests, thousands of times slower.
    """
    if device.type == "cuda":
        return "triton"
    return INTERPRETER if _INTERPRETED else _cpu_kernel_name()


@cache
def _cpu_kernel_name() -> str:
    if cpu.available():
        return f"c-{cpu.instruction_set()}"
    warnings.warn(
        "sruserve was installed without its compiled CPU kernel, so the recurrence runs in plain "
        "torch: right, but many times slower. Install a C compiler and reinstall sruserve.",
        RuntimeWarning,
        stacklevel=3,
    )
    return "reference"


def scan(
    u: Tensor,
    residual: Tensor | None,
    weight_c: Tensor | None,
    bias: Tensor | None,
    batch: RaggedBatch,
    column: int,
    cell: Cell,
    *,
    backward_from: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """An element-wise recurrence over a ragged batch, as `reference_scan` defines it.

    out: (rows, width), the dtype of `u`: takes h instead of new memory.
    """
    given = (u, residual, weight_c, bias, batch, column, cell)
    if uses_triton(u.device):
        from sruserve.kernels.triton_scan import triton_scan

        return triton_scan(*given, backward_from=backward_from, out=out)
    run = reference_scan if _cpu_kernel_name() == "reference" else cpu.cpu_scan
    h = run(*given, backward_from=backward_from)
    return h if out is None else out.copy_(h)
