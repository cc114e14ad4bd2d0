"""Windowed attention in plain torch: the definition that the faster kernel must agree with."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sruserve.kernels.ragged import RaggedBatch

_QUERIES = 256  # whose scores are held at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """All of an attention that is fixed when a model is loaded.

    window: how many positions before its own a query sees; None: every position of the sequence,
        also those after it, and nothing is remembered.
    heads: neighbouring, equal shares of the features.
    alpha: the factor on what was attended to.
    column: where the ring begins in a state row: (window, 2 * width) keys and values, slot
        `position % window`, or (window, 4 * width) with `memory`; behind it stands the count of
        positions seen, of which from 2 * window on only window + count % window is kept.
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
    """Causal attention to a window of the past (sru 3.0.0.dev1-dev6, `SRUppAttention`).

    q, residual: (rows, width), float32, bfloat16 or float16.
    keys_values: (rows, 2 * width), the same dtype: keys, values.
    memory: (rows, 2 * width): the keys and values that a position shows to queries of a later
        chunk, chunks being `window` positions long from the stream's start; None: the same.

    Returns alpha * softmax(q @ k.T / sqrt(width / heads)) @ v + residual, (rows, width), the dtype
    of q; arithmetic and state are float32. The ring moves on from source to target rows.
    """
    heads, window = attention.heads, attention.window
    new = keys_values if memory is None else torch.cat((keys_values, memory), 1)
    out = torch.zeros_like(q)
    offsets = batch.offsets.tolist()
    streams = zip(batch.source.tolist(), batch.target.tolist(), strict=True)
    for sequence, (source, target) in enumerate(streams):
        begin, end = offsets[sequence : sequence + 2]
        shown, seen = new[begin:end].float(), 0
        if window is not None:
            size = window * new.shape[1]
            row = batch.states.new_zeros(size + 1)
            if source >= 0:
                row = batch.states[source, attention.column : attention.column + size + 1].clone()
            ring, seen = row[:size].view(window, -1), int(row[size])
            before = torch.arange(max(0, seen - window), seen, device=q.device)
            shown = torch.cat((ring[before % window], shown))
        position = torch.arange(seen + end - begin, device=q.device)[-len(shown) or None :]
        for first in range(begin, end, _QUERIES):
            some = slice(first, min(first + _QUERIES, end))
            asked = torch.arange(some.start, some.stop, device=q.device) - begin + seen
            mixed = _mix(q[some].float(), asked, shown, position, heads, window)
            out[some] = (mixed * attention.alpha + residual[some].float()).to(q.dtype)
        if window is not None and target >= 0:
            kept = position[-window:]
            ring[kept % window] = shown[-window:]
            count = seen + end - begin
            row[size] = count if count < 2 * window else window + count % window
            batch.states[target, attention.column : attention.column + size + 1] = row
    return out


def _mix(
    q: Tensor, asked: Tensor, shown: Tensor, position: Tensor, heads: int, window: int | None
) -> Tensor:
    """What queries (queries, width) at positions `asked` see of what is `shown` at `position`."""
    rows = shown.view(len(shown), -1, 2, heads, q.shape[1] // heads)
    keys, values = rows[:, :, 0], rows[:, :, 1]  # (keys, 1 or 2 for memory, heads, size)
    queries = q.view(len(q), heads, -1)
    age = asked[:, None] - position
    hidden = torch.zeros_like(age, dtype=torch.bool)
    late = hidden  # the key is of an earlier chunk than the query
    if window is not None:
        hidden = (age < 0) | (age > window)
        late = position < (asked - asked % window)[:, None]
    scores = torch.einsum("qhd,kshd->shqk", queries, keys)
    score = torch.where(late, scores[-1], scores[0]) * queries.shape[2] ** -0.5
    weight = score.masked_fill(hidden, -torch.inf).softmax(-1)
    mixed = torch.einsum("hqk,khd->qhd", weight * ~late, values[:, 0])
    mixed += torch.einsum("hqk,khd->qhd", weight * late, values[:, -1])
    return mixed.flatten(1)
