"""Call the compiled CPU kernel for gated layers, `layer.h`, through ctypes and without the GIL."""

import torch
from torch import Tensor

import sruserve.kernels.cpu.library as cpu
from sruserve.kernels.gated_cell import GatedCell
from sruserve.kernels.panel_weight import GROUP
from sruserve.kernels.ragged import RaggedBatch


def cpu_gated_scan(
    u: Tensor, cell: GatedCell, batch: RaggedBatch, out: Tensor, work: Tensor | None = None
) -> None:
    """Run `reference_gated_scan` in one call; the rows of `u` and `out` are contiguous.

    The bits of a sequence depend only on its own inputs and the instruction set: not on the batch,
    the split of time into calls, or the number of threads.

    work: float32 memory for the steps; None: it is allocated.

    Raises ValueError or IndexError, before it writes anything, for tensors that do not fit.
    """
    states, offsets, source, target = batch.states, batch.offsets, batch.source, batch.target
    sequences, width, outputs, dtype = len(source), cell.width, cell.outputs, u.dtype
    rows = len(u)
    first, second = cell.first, cell.second
    if not (
        u.shape[1] == cell.kind.blocks * width
        and out.shape == (rows, outputs)
        and out.dtype is dtype is first.panels.dtype
        and (dtype is torch.float32 or dtype is torch.bfloat16)
        and states.dtype is torch.float32
        and offsets.dtype is source.dtype is target.dtype is torch.int64
        and offsets.shape == (sequences + 1,)
        and target.shape == (sequences,)
    ):
        raise ValueError(
            "gated scan: a tensor has the wrong shape or dtype "
            f"(u is {tuple(u.shape)} of {dtype}); see reference_gated_scan"
        )
    if not (u.is_cpu and out.is_cpu and u.stride(1) == 1 and out.stride(1) == 1):
        raise ValueError("u and out must be on the CPU, and their rows contiguous")
    for tensor in (states, offsets, source, target):
        if not (tensor.is_cpu and tensor.is_contiguous()):
            raise ValueError("states, offsets, source and target must be contiguous on the CPU")
    order = offsets.diff().argsort(descending=True, stable=True)
    if work is None:
        padded = -(-width // GROUP) + -(-outputs // GROUP)
        work = torch.empty(sequences * 2 * padded * GROUP)
    cpu.call(
        "sru_gated",
        cpu.GATED.pack(
            u.data_ptr(),
            out.data_ptr(),
            first.panels.data_ptr(),
            0 if second is None else second.panels.data_ptr(),
            _pointer(first.bias),
            0 if second is None else _pointer(second.bias),
            states.data_ptr(),
            offsets.data_ptr(),
            source.data_ptr(),
            target.data_ptr(),
            order.data_ptr(),
            work.data_ptr(),
            work.numel(),
            rows,
            sequences,
            *states.shape,
            cell.column,
            cell.cell_column,
            width,
            outputs,
            u.stride(0),
            out.stride(0),
            cell.kind,
            cell.backward,
            dtype is torch.bfloat16,
            torch.get_num_threads(),
        ),
    )


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
