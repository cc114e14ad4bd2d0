"""Windowed attention in plain torch: the definition that the faster kernel must agree with."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sruserve.kernels.ragged import RaggedBatch

_QUERIES = 256  # number of queries whose scores are in memory at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Everything about an attention that is fixed when a model is loaded.

    window: number of positions before its own that a query sees. None: it sees every position of
        the sequence, also later ones, and there is no state.
    heads: number of heads; each takes an equal run of adjacent features.
    alpha: factor on the attention's output.
    column: first column of the ring in a state row: (window, 2 * width) keys and values, or
        (window, 4 * width) with `memory`; a position is in slot `position % window`. The next
        column counts the positions seen. From 2 * window on it stores window + count % window.
    """

    window: int | None
    heads: int = 1
    alpha: float = 1.0
    column: int = 0


def reference_attention(
    q: Tensor,
    keys_values: Tensor,
    residual: Tensor,
    batch: RaggedBatch,
    attention: Attention,
    memory: Tensor | None = None,
) -> Tensor:
    """Compute causal attention to a window of the past (sru 3.0.0.dev1-dev6, `SRUppAttention`).

    q, residual: (rows, width), float32, bfloat16 or float16.
    keys_values: (rows, 2 * width), the same dtype: keys, values.
    memory: (rows, 2 * width): the keys and values that queries of a later chunk see instead. Chunks
        are `window` positions long, counted from the stream's start. None: they see `keys_values`.

    Returns alpha * softmax(q @ k.T / sqrt(width / heads)) @ v + residual, (rows, width), the dtype
    of q. Arithmetic and state are float32. The rings advance from the source rows to the target
    rows.
    """
    heads, window = attention.heads, attention.window
    new = keys_values if memory is None else torch.cat((keys_values, memory), 1)
    out = torch.zeros_like(q)
    offsets = batch.offsets.tolist()
    streams = zip(batch.source.tolist(), batch.target.tolist(), strict=True)
    for sequence, (source, target) in enumerate(streams):
        begin, end = offsets[sequence : sequence + 2]
        visible, seen = new[begin:end].float(), 0
        if window is not None:
            size = window * new.shape[1]
            row = batch.states.new_zeros(size + 1)
            if source >= 0:
                row = batch.states[source, attention.column : attention.column + size + 1].clone()
            ring, seen = row[:size].view(window, -1), int(row[size])
            before = torch.arange(max(0, seen - window), seen, device=q.device)
            visible = torch.cat((ring[before % window], visible))
        position = torch.arange(seen + end - begin, device=q.device)[-len(visible) or None :]
        for first in range(begin, end, _QUERIES):
            rows = slice(first, min(first + _QUERIES, end))
            query_position = torch.arange(rows.start, rows.stop, device=q.device) - begin + seen
            mixed = _mix(q[rows].float(), query_position, visible, position, heads, window)
            out[rows] = (mixed * attention.alpha + residual[rows].float()).to(q.dtype)
        if window is not None and target >= 0:
            remembered = position[-window:]
            ring[remembered % window] = visible[-window:]
            count = seen + end - begin
            row[size] = count if count < 2 * window else window + count % window
            batch.states[target, attention.column : attention.column + size + 1] = row
    return out


def _mix(
    q: Tensor,
    query_position: Tensor,
    visible: Tensor,
    position: Tensor,
    heads: int,
    window: int | None,
) -> Tensor:
    """Mix the values that queries see, (queries, width).

    q: (queries, width), at positions `query_position`. visible: (keys, 2 or 4 * width), keys and
    values at `position`.
    """
    rows = visible.view(len(visible), -1, 2, heads, q.shape[1] // heads)
    keys, values = rows[:, :, 0], rows[:, :, 1]  # (keys, 1 or 2 for memory, heads, size)
    queries = q.view(len(q), heads, -1)
    age = query_position[:, None] - position
    hidden = torch.zeros_like(age, dtype=torch.bool)
    late = hidden  # true where the key's chunk is earlier than the query's
    if window is not None:
        hidden = (age < 0) | (age > window)
        late = position < (query_position - query_position % window)[:, None]
    scores = torch.einsum("qhd,kshd->shqk", queries, keys)
    score = torch.where(late, scores[-1], scores[0]) * queries.shape[2] ** -0.5
    weight = score.masked_fill(hidden, -torch.inf).softmax(-1)
    mixed = torch.einsum("hqk,khd->qhd", weight * ~late, values[:, 0])
    mixed += torch.einsum("hqk,khd->qhd", weight * late, values[:, -1])
    return mixed.flatten(1)
