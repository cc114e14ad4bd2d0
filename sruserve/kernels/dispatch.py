"""Choose the recurrence's kernel: Triton's on a GPU, the compiled one on a CPU, or plain torch."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

import sruserve.kernels.cpu.library as cpu
from sruserve.kernels.cell import Cell
from sruserve.kernels.devices import CPU
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.reference.scan import reference_scan

log = logging.getLogger("sruserve.kernels")

INTERPRETER = "triton-interpreter"
# Triton's own switch, with the values that Triton reads as true: kernels then run in Python, on CPU
# tensors.
_interpreted = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")


def uses_triton(device: torch.device) -> bool:
    """Whether the Triton kernels run work on `device`."""
    return device.type == "cuda" or _interpreted


@contextmanager
def interpreting(interpreted: bool) -> Iterator[None]:
    """Run work on the CPU by Triton's interpreter, or not, whatever the environment says."""
    global _interpreted
    before, _interpreted = _interpreted, interpreted
    try:
        yield
    finally:
        _interpreted = before


def kernel_name(device: torch.device = CPU) -> str:
    """Return the kernel that runs the recurrence: `triton`, `c-<instruction set>` or `reference`.

    `triton-interpreter` is Triton without a GPU: for tests, thousands of times slower. Logs once if
    the compiled CPU kernel is missing.
    """
    if device.type == "cuda":
        return "triton"
    return INTERPRETER if _interpreted else _cpu_kernel_name()


@cache
def _cpu_kernel_name() -> str:
    if cpu.available():
        return f"c-{cpu.instruction_set()}"
    log.warning(
        "sruserve was installed without its compiled CPU kernel, so the recurrence runs in plain "
        "torch: correct, but many times slower; install a C compiler and reinstall sruserve"
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
    """Run an element-wise recurrence over a ragged batch, as `reference_scan` defines it.

    out: (rows, width), the dtype of `u`: receives h; None allocates it.

    Returns h, (rows, width). Raises ValueError or IndexError, before it writes anything, for
    tensors that do not fit.
    """
    arguments = (u, residual, weight_c, bias, batch, column, cell)
    if uses_triton(u.device):
        from sruserve.kernels.triton.scan import triton_scan

        return triton_scan(*arguments, backward_from=backward_from, out=out)
    run = reference_scan if _cpu_kernel_name() == "reference" else cpu.cpu_scan
    h = run(*arguments, backward_from=backward_from)
    return h if out is None else out.copy_(h)
