"""Attention of a decoder's step in plain torch: the definition of the faster kernel."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class KeyRows:
    """Where the keys and values of each query are.

    tables: (rows, width) each, the same width, float32.
    table: (queries), int64: the number of each query's table.
    counts: (queries), int64: the number of rows of its table that a query sees.
    index: (queries, most), int32: which rows these are, in their order; None: the first ones.
    own: (queries, width), float32: one more row for each query, after the others; None: no more.
    """

    tables: Sequence[Tensor]
    table: Tensor
    counts: Tensor
    index: Tensor | None = None
    own: Tensor | None = None

    @cached_property
    def addresses(self) -> Tensor:
        """Return the address of each query's table, (queries), int64."""
        return torch.tensor([table.data_ptr() for table in self.tables])[self.table]

    @cached_property
    def limits(self) -> Tensor:
        """Return the number of rows of each query's table, (queries), int64."""
        return torch.tensor([len(table) for table in self.tables])[self.table]

    def of(self, query: int) -> Tensor:
        """Return the rows that a query sees, (rows, width)."""
        table, count = self.tables[int(self.table[query])], int(self.counts[query])
        rows = table[:count] if self.index is None else table[self.index[query, :count].long()]
        return rows if self.own is None else torch.cat((rows, self.own[query : query + 1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderAttention:
    """Everything about an attention that is fixed when a model is loaded.

    keys, values: first column of the keys and of the values in a row; they may be the same.
    width: their number of columns. heads: each takes an equal run of adjacent columns.
    scale: factor on a score.
    additive: (width), float32: v of a score v · tanh(query + key), in place of a dot product; it
        has one head.
    """

    keys: int
    values: int
    width: int
    heads: int = 1
    scale: float = 1.0
    additive: Tensor | None = None


def reference_decoder_attention(
    q: Tensor, rows: KeyRows, attention: DecoderAttention, shares: Tensor | None = None
) -> Tensor:
    """Compute the attention of each query to its own rows (Vaswani et al. 2017, eq. 1).

    With `additive`, the scores are those of Bahdanau et al. 2015.

    q: (queries, width), float32.
    shares: (queries, most), float32: receives the mean of the heads' weights for each row, and 0
        after the last of them.

    Returns softmax(scores) @ values, (queries, width), float32; zeros for a query without rows.
    """
    heads, width = attention.heads, attention.width
    out = torch.zeros_like(q)
    if shares is not None:
        shares.zero_()
    for query in range(len(q)):
        seen = rows.of(query)
        if not len(seen):
            continue
        keys = seen[:, attention.keys : attention.keys + width].view(len(seen), heads, -1)
        values = seen[:, attention.values : attention.values + width].view(len(seen), heads, -1)
        own = q[query].view(heads, -1)
        if attention.additive is None:
            scores = torch.einsum("hd,khd->hk", own, keys)
        else:
            scores = ((own + keys).tanh() * attention.additive).sum(2).T
        weights = (scores * attention.scale).softmax(-1)
        out[query] = torch.einsum("hk,khd->hd", weights, values).flatten()
        if shares is not None:
            shares[query, : len(seen)] = weights.mean(0)
    return out
