"""Attention of a decoder's step: each query reads rows of its own."""

import torch
from torch import Tensor

import sruserve.kernels.cpu.library as cpu
from sruserve.kernels.reference.decoder_attention import (
    DecoderAttention,
    KeyRows,
    reference_decoder_attention,
)

__all__ = ["DecoderAttention", "KeyRows", "cpu_decoder_attention", "decoder_attention"]


def decoder_attention(
    q: Tensor, rows: KeyRows, attention: DecoderAttention, shares: Tensor | None = None
) -> Tensor:
    """Compute `reference_decoder_attention`, with the compiled kernel if it is available."""
    run = cpu_decoder_attention if cpu.available() else reference_decoder_attention
    return run(q, rows, attention, shares)


def cpu_decoder_attention(
    q: Tensor, rows: KeyRows, attention: DecoderAttention, shares: Tensor | None = None
) -> Tensor:
    """Compute `reference_decoder_attention` with vectors and threads.

    The bits of a query's result depend only on the rows that it sees, in their order, and on the
    instruction set: not on the other queries, on where its rows are, or on the number of threads.

    Raises ValueError, IndexError or MemoryError before it writes anything.
    """
    queries, width = q.shape
    index, own, additive = rows.index, rows.own, attention.additive
    columns = rows.tables[0].shape[1] if rows.tables else width
    width_of_index = 0 if index is None else index.shape[1]
    if not (
        width == attention.width > 0
        and width % attention.heads == 0
        and 0 <= attention.keys <= columns - width
        and 0 <= attention.values <= columns - width
        and rows.table.shape == rows.counts.shape == (queries,)
        and rows.table.dtype is rows.counts.dtype is torch.int64
        and all(table.shape[1] == columns for table in rows.tables)
        and (index is None or (len(index) == queries and index.dtype is torch.int32))
        and (own is None or own.shape == (queries, columns))
        and (additive is None or (additive.shape == (width,) and attention.heads == 1))
        and (shares is None or len(shares) == queries)
    ):
        raise ValueError("decoder attention: a tensor has the wrong shape or dtype")
    floats = [q, *rows.tables, *(t for t in (own, additive, shares) if t is not None)]
    if any(tensor.dtype is not torch.float32 for tensor in floats):
        raise ValueError("decoder attention: every tensor of numbers must be float32")
    for tensor in (*floats, rows.table, rows.counts, *(() if index is None else (index,))):
        if not (tensor.is_cpu and tensor.is_contiguous()):
            raise ValueError("decoder attention: every tensor must be contiguous and on the CPU")
    out = torch.empty(queries, width)
    addresses, limits = rows.addresses, rows.limits
    cpu.call(
        "sru_decoder_attention",
        cpu.DECODER_ATTENTION.pack(
            q.data_ptr(),
            addresses.data_ptr(),
            limits.data_ptr(),
            rows.counts.data_ptr(),
            0 if index is None else index.data_ptr(),
            0 if own is None else own.data_ptr(),
            0 if additive is None else additive.data_ptr(),
            out.data_ptr(),
            0 if shares is None else shares.data_ptr(),
            queries,
            width,
            attention.heads,
            columns,
            attention.keys,
            attention.values,
            width_of_index,
            0 if shares is None else shares.shape[1],
            torch.get_num_threads(),
            attention.scale,
        ),
    )
    return out
