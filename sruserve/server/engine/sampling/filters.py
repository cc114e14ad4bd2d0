"""Exclude unlikely tokens by top-k, top-p and min-p, without sorting a large vocabulary."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from sruserve.server.engine.decoding_parameters import Sampling

_CANDIDATES = 1024  # the likeliest tokens; filters seldom keep more
_UNLIMITED = 1 << 30  # larger than any vocabulary


def column(device: torch.device, values: Sequence[float | bool]) -> Tensor:
    """Return the values of the sequences, (sequences, 1)."""
    return torch.tensor(values, device=device).unsqueeze(1)


class Filters:
    """The filters of a batch of sequences.

    rows: the sequences that have a filter.
    candidates: tokens of which each row's likeliest are sorted. All tokens are sorted only of rows
        whose filters keep more, so that no row's result depends on this number, or on other rows.
    """

    def __init__(
        self,
        sampling: Sequence[Sampling],
        rows: Sequence[int],
        device: torch.device,
        candidates: int = _CANDIDATES,
    ) -> None:
        chosen = [sampling[i] for i in rows]
        self._rows = None if len(rows) == len(sampling) else torch.tensor(rows, device=device)
        self._candidates = candidates
        own = partial(column, device)
        self._top_k = own([min(s.top_k, _UNLIMITED) or _UNLIMITED for s in chosen])
        self._top_p = own([s.top_p if s.top_p < 1 else 2.0 for s in chosen])
        self._min_p = own([s.min_p for s in chosen])

    def __call__(self, probabilities: Tensor) -> Tensor:
        """Zero what top-k, then top-p over the rest, then min-p exclude.

        probabilities: (sequences, vocabulary), float32; they stay unchanged.
        """
        if self._rows is None:
            return self._filtered(probabilities)
        filtered = self._filtered(probabilities.index_select(0, self._rows))
        return probabilities.index_copy(0, self._rows, filtered)

    def _filtered(self, probabilities: Tensor) -> Tensor:
        vocabulary = probabilities.shape[1]
        # The last of sums in order: a sum of its own adds in another order on several threads.
        total = probabilities.cumsum(1, dtype=torch.float64)[:, -1:]
        filters = (self._top_k, self._top_p, self._min_p, total)
        if vocabulary <= 2 * self._candidates:
            return _among_all(probabilities, *filters)
        ordered, ids = _likeliest(probabilities, self._candidates)
        kept = _kept(ordered, vocabulary, *filters)
        filtered = torch.zeros_like(probabilities).scatter_(1, ids, kept)
        # Tokens as likely as the last candidate may be left out. Filters keep the likeliest, so a
        # row is right if they keep none of these.
        open_end = ((kept > 0) & (ordered <= ordered[:, -1:])).any(1, keepdim=True)
        wrong = open_end | ((self._top_k > self._candidates) & (self._top_k < vocabulary))
        rows = wrong.squeeze(1).nonzero().squeeze(1)
        if len(rows):
            own = (values.index_select(0, rows) for values in (probabilities, *filters))
            filtered.index_copy_(0, rows, _among_all(*own))
        return filtered


def _likeliest(probabilities: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest probabilities, and their ids; of equal ones, lower ids are first."""
    ids = probabilities.topk(count, dim=1, sorted=False).indices.sort(1).values
    ordered, places = probabilities.gather(1, ids).sort(dim=1, descending=True, stable=True)
    return ordered, ids.gather(1, places)


def _among_all(
    probabilities: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, total: Tensor
) -> Tensor:
    ordered, ids = torch.sort(probabilities, dim=1, descending=True, stable=True)
    kept = _kept(ordered, probabilities.shape[1], top_k, top_p, min_p, total)
    return torch.zeros_like(probabilities).scatter_(1, ids, kept)


def _kept(
    ordered: Tensor, vocabulary: int, top_k: Tensor, top_p: Tensor, min_p: Tensor, total: Tensor
) -> Tensor:
    """The likeliest probabilities in order, zero where they are excluded.

    total: the sum of the whole vocabulary.
    """
    kept = ordered.where(torch.arange(ordered.shape[1], device=ordered.device) < top_k, 0.0)
    mass = kept.cumsum(1, dtype=torch.float64)
    total = torch.where(top_k < vocabulary, mass[:, -1:], total)
    inside = mass - kept < top_p * total
    inside[:, 0] = True  # the most likely token stays, however small top_p is
    kept = kept.where(inside, 0.0)
    return kept.where(kept >= min_p * kept[:, :1], 0.0)
