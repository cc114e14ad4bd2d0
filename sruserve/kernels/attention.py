"""Windowed attention: Triton's kernel on a GPU, the compiled one on a CPU, or plain torch."""

import torch
from torch import Tensor

import sruserve.kernels.cpu.library as cpu
from sruserve.kernels.dispatch import uses_triton
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.reference.attention import Attention, reference_attention

__all__ = ["Attention", "attend", "cpu_attention"]


def attend(
    q: Tensor,
    keys_values: Tensor,
    residual: Tensor,
    batch: RaggedBatch,
    attention: Attention,
    memory: Tensor | None = None,
    *,
    one_step: bool = False,
) -> Tensor:
    """Compute attention over a ragged batch, as `reference_attention` defines it.

    one_step: every sequence has one row.

    Returns (rows, width), the dtype of q. Raises what the kernels raise.
    """
    if uses_triton(q.device):
        from sruserve.kernels.triton.attention import triton_attention

        return triton_attention(
            q, keys_values, residual, batch, attention, memory, one_step=one_step
        )
    run = cpu_attention if q.is_cpu and cpu.available() else reference_attention
    return run(q, keys_values, residual, batch, attention, memory)


def cpu_attention(
    q: Tensor,
    keys_values: Tensor,
    residual: Tensor,
    batch: RaggedBatch,
    attention: Attention,
    memory: Tensor | None = None,
) -> Tensor:
    """Compute `reference_attention` with vectors and threads; every tensor is contiguous.

    q, keys_values, residual, memory: as for `reference_attention`, in float32 or bfloat16.

    The bits of a query's result depend only on the keys and values it sees, in the order of time,
    and on the instruction set. They do not depend on the batch, on the split of time into calls or
    on the number of threads.

    Raises ValueError, IndexError or MemoryError before it writes anything.
    """
    states, offsets, source, target = batch.states, batch.offsets, batch.source, batch.target
    rows, width = q.shape
    dtype, window = q.dtype, attention.window
    tensors = [q, keys_values, residual, *([] if memory is None else [memory])]
    if not (
        all(tensor.dtype is dtype for tensor in tensors)
        and (dtype is torch.float32 or dtype is torch.bfloat16)
        and keys_values.shape == (rows, 2 * width)
        and residual.shape == q.shape
        and (memory is None or memory.shape == keys_values.shape)
        and width > 0
        and attention.heads > 0
        and width % attention.heads == 0
        and (window is None or window > 0)
        and states.dtype is torch.float32
        and offsets.dtype is source.dtype is target.dtype is torch.int64
        and offsets.shape == (len(source) + 1,)
        and target.shape == source.shape
    ):
        raise ValueError(
            f"attention: a tensor has the wrong shape or dtype (q is {tuple(q.shape)} of {dtype}); "
            "see reference_attention"
        )
    for tensor in (*tensors, states, offsets, source, target):
        if not (tensor.is_cpu and tensor.is_contiguous()):
            raise ValueError("attention: every tensor must be contiguous and on the CPU")
    out = torch.empty(rows, width, dtype=dtype)
    cpu.call(
        "sru_attention",
        cpu.ATTENTION.pack(
            q.data_ptr(),
            keys_values.data_ptr(),
            0 if memory is None else memory.data_ptr(),
            residual.data_ptr(),
            out.data_ptr(),
            states.data_ptr(),
            offsets.data_ptr(),
            source.data_ptr(),
            target.data_ptr(),
            rows,
            width,
            attention.heads,
            -1 if window is None else window,
            len(source),
            *states.shape,
            attention.column,
            dtype is torch.bfloat16,
            memory is not None and window is not None,
            torch.get_num_threads(),
            attention.alpha,
        ),
    )
    return out
