"""Windowed attention on a GPU: one launch for the queries of all streams, one for their rings."""

import torch
from torch import Tensor

from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.reference.attention import Attention
from sruserve.kernels.triton.attention_kernels import attention_kernel, ring_kernel
from sruserve.kernels.triton.linear import check_memory
from sruserve.kernels.triton.tiles import RING_COLUMNS, RING_SLOTS, AttentionTile, attention_tile

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def triton_attention(
    q: Tensor,
    keys_values: Tensor,
    residual: Tensor,
    batch: RaggedBatch,
    attention: Attention,
    memory: Tensor | None = None,
    *,
    one_step: bool = False,
    tile: AttentionTile | None = None,
) -> Tensor:
    """Run `reference_attention` on one GPU, in one launch and one that advances the rings.

    one_step: every sequence has one row, so that no program looks for its sequence.
    tile: block sizes; None takes those for the width of a head.

    float32 is computed in float32. In 16 bits the keys, the values and the weights of the values
    are, and all sums are float32.

    Returns (rows, width), the dtype of q. Raises ValueError, before it writes anything, for tensors
    that do not fit. It does not read offsets, source and target, which are in device memory.
    """
    _check(q, keys_values, residual, batch, attention, memory)
    (rows, width), heads, window = q.shape, attention.heads, attention.window
    size = width // heads
    if tile is None:
        tile = attention_tile(size, q.dtype)
    out = torch.empty_like(q)
    if not batch.sequences or not rows:
        rows = 0
    counts = torch.empty(batch.sequences, dtype=torch.int32, device=q.device)
    blocks = batch.sequences if one_step else batch.sequences + rows // tile.queries
    if not blocks:
        return out
    remembered = 0 if window is None else (4 if memory is not None else 2) * width
    with torch.cuda.device_of(q):  # Triton launches on the current device
        attention_kernel[(blocks, heads * -(-size // tile.values))](
            q,
            keys_values,
            memory if window is not None else None,
            residual,
            out,
            batch.states,
            batch.offsets,
            batch.source,
            counts,
            batch.sequences,
            batch.states.shape[1],
            attention.column,
            attention.alpha,
            size**-0.5,
            WIDTH=width,
            SIZE=size,
            WINDOW=window or 0,
            RING=remembered,
            ONE_STEP=one_step,
            QUERIES=tile.queries,
            KEYS=tile.keys,
            DEPTH=tile.depth,
            VALUES=tile.values,
            num_warps=tile.warps,
            enable_fp_fusion=False,
        )
        if window is not None:
            ring_kernel[(batch.sequences, -(-remembered // RING_COLUMNS))](
                keys_values,
                memory,
                batch.states,
                batch.offsets,
                batch.source,
                batch.target,
                counts,
                batch.states.shape[1],
                attention.column,
                WIDTH=width,
                WINDOW=window,
                RING=remembered,
                SLOTS=RING_SLOTS,
                COLUMNS=RING_COLUMNS,
                num_warps=4,
                enable_fp_fusion=False,
            )
    return out


def _check(
    q: Tensor,
    keys_values: Tensor,
    residual: Tensor,
    batch: RaggedBatch,
    attention: Attention,
    memory: Tensor | None,
) -> None:
    rows, width = q.shape
    if q.dtype not in _DTYPES or width % attention.heads:
        raise ValueError(
            f"q must be float32, bfloat16 or float16 of a multiple of {attention.heads} features, "
            f"not {q.dtype} of {width}"
        )
    sequences = (batch.sequences,)
    for name, tensor, shape, kind in (
        ("keys_values", keys_values, (rows, 2 * width), q.dtype),
        ("memory", memory, (rows, 2 * width), q.dtype),
        ("residual", residual, (rows, width), q.dtype),
        ("offsets", batch.offsets, (batch.sequences + 1,), torch.int64),
        ("source", batch.source, sequences, torch.int64),
        ("target", batch.target, sequences, torch.int64),
        ("states", batch.states, tuple(batch.states.shape), torch.float32),
    ):
        if tensor is not None and (tensor.shape != shape or tensor.dtype is not kind):
            raise ValueError(
                f"{name} must have shape {shape} and dtype {kind}, not {tuple(tensor.shape)} and "
                f"{tensor.dtype}"
            )
    check_memory(
        q.device,
        q=q,
        keys_values=keys_values,
        memory=memory,
        residual=residual,
        states=batch.states,
        offsets=batch.offsets,
        source=batch.source,
        target=batch.target,
    )
    if attention.window is None:
        return
    ring = attention.window * (4 if memory is not None else 2) * width
    if not 0 <= attention.column < batch.states.shape[1] - ring:
        raise ValueError(
            f"columns {attention.column} to {attention.column + ring} must lie within states, "
            f"which has shape {tuple(batch.states.shape)}"
        )
