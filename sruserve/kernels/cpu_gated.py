"""The gated layers of the compiled CPU kernel: `cpu_layer.h` through ctypes, without the GIL."""

import ctypes
import struct

import torch
from torch import Tensor

import sruserve.kernels.cpu as cpu
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.recurrent import GatedCell

_CALL = struct.Struct("=27q")  # `struct gated` in cpu_step.h
_GROUP = 16


def _entry() -> "ctypes._NamedFuncPointer | None":
    library = cpu._library
    if library is None or library.sru_gated_bytes() != _CALL.size:
        return None
    library.sru_gated.argtypes = [ctypes.c_char_p]
    return library.sru_gated


_gated = _entry()


def available() -> bool:
    """Whether the compiled kernel is there."""
    return _gated is not None


def cpu_gated_scan(u: Tensor, cell: GatedCell, batch: RaggedBatch, out: Tensor) -> None:
    """`reference_gated_scan` in one call; `u` and `out` contiguous along a row.

    The bits of a sequence depend on its own inputs and the instruction set alone: not on the
    batch, the split of time into calls, or the number of threads.

    Raises ValueError or IndexError, before anything is written, for tensors that do not fit.
    """
    if _gated is None:
        raise RuntimeError("the CPU kernel was not compiled; use reference_gated_scan")
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
        raise ValueError("a tensor has the wrong shape or dtype; see reference_gated_scan")
    if not (u.is_cpu and out.is_cpu and u.stride(1) == 1 and out.stride(1) == 1):
        raise ValueError("u and out must be on the CPU, and contiguous along a row")
    for tensor in (states, offsets, source, target):
        if not (tensor.is_cpu and tensor.is_contiguous()):
            raise ValueError("states, offsets, source and target must be contiguous on the CPU")
    order = offsets.diff().argsort(descending=True, stable=True)
    padded = -(-width // _GROUP) + -(-outputs // _GROUP)
    work = torch.empty(sequences * 2 * padded * _GROUP)
    error = _gated(
        _CALL.pack(
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
        )
    )
    if error:
        kind, message = cpu._ERRORS[error]
        raise kind(message)


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
