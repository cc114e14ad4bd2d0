"""Heads: a score for every class or word from a row of the stack's outputs."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from sruserve.kernels import LinearOp, padded_rows, uses_triton
from sruserve.model.clusters import Cluster
from sruserve.model.heads.row_layers import RowMap, sigmoid

MAX_NUMBERS = 1 << 22  # limit on a head's intermediate numbers at a time
SMALLEST = 1e-8  # a mixture's training adds this to a probability before the logarithm


class Head(Protocol):
    """Scores rows.

    linear: the linear layer of a head that is nothing else, for bursts on a GPU; otherwise None.
    """

    linear: LinearOp | None

    def __call__(self, hidden: Tensor) -> Tensor:
        """Score rows (rows, width); returns (rows, outputs), float32.

        The softmax of the scores is the predicted distribution.
        """
        ...

    def log_probs(self, scores: Tensor) -> Tensor:
        """Compute log-probabilities, as in training, from the scores of a call."""
        ...


class LinearHead:
    """One linear layer, then a softmax.

    max_numbers: limit on intermediate numbers at a time, as for every head.
    """

    def __init__(self, linear: LinearOp, max_numbers: int = MAX_NUMBERS) -> None:
        self.linear: LinearOp | None = linear
        self._linear, self._max_numbers = linear, max_numbers

    def __call__(self, hidden: Tensor) -> Tensor:
        """See `Head`."""
        if uses_triton(hidden.device):  # round once, like a step of a burst
            return self._linear(hidden, torch.float32)
        return in_pieces(self._scores, hidden, self._linear.outputs, 1, self._max_numbers)

    def log_probs(self, scores: Tensor) -> Tensor:
        """See `Head`."""
        return over_words(torch.log_softmax, scores)

    def _scores(self, hidden: Tensor) -> Tensor:
        return self._linear(hidden, torch.float32)


class AdaptiveHead:
    """An adaptive softmax (Grave et al. 2017), with the columns of the SRU++ experiments.

    A word's probability is that of its cluster times its own within the cluster. The first linear
    layer scores the first cluster's words, then the other clusters, the last of them first.

    projection: (width) -> (sum of the clusters' widths).
    linears: (cluster's width) -> (its words); the first -> (its words and the other clusters).
    """

    linear: LinearOp | None = None

    def __init__(
        self,
        clusters: Sequence[Cluster],
        projection: LinearOp,
        linears: Sequence[LinearOp],
        max_numbers: int = MAX_NUMBERS,
    ) -> None:
        self._clusters, self._max_numbers = clusters, max_numbers
        self._projection, self._linears = projection, linears

    def __call__(self, hidden: Tensor) -> Tensor:
        """See `Head`. The scores are log-probabilities."""
        return in_pieces(self._scores, hidden, self._clusters[-1].end, 1, self._max_numbers)

    def log_probs(self, scores: Tensor) -> Tensor:
        """See `Head`."""
        return scores

    def _scores(self, hidden: Tensor) -> Tensor:
        result = hidden.new_empty(len(hidden), self._clusters[-1].end, dtype=torch.float32)
        own = torch.split(self._projection(hidden), [c.width for c in self._clusters], 1)
        first = self._linears[0](own[0].contiguous(), torch.float32)
        first = over_words(torch.log_softmax, first)
        result[:, : self._clusters[0].end] = first[:, : self._clusters[0].end]
        for i, cluster in enumerate(self._clusters[1:], 1):
            within = self._linears[i](own[i].contiguous(), torch.float32)
            within = over_words(torch.log_softmax, within)
            torch.add(within, first[:, -i, None], out=result[:, cluster.first : cluster.end])
        return result


class MixtureHead:
    """A mixture of softmaxes (Yang et al. 2018), as in the LRN repository's language model.

    p = sum over experts k of softmax(prior h)_k * softmax(decoder tanh(latent h)_k). The scores
    are log(p + 1e-8).

    prior: (width) -> (experts). latent: (width) -> (experts * n). decoder: (n) -> (outputs).
    """

    linear: LinearOp | None = None

    def __init__(
        self,
        prior: LinearOp,
        latent: LinearOp,
        decoder: LinearOp,
        max_numbers: int = MAX_NUMBERS,
    ) -> None:
        self._prior, self._latent, self._decoder = prior, latent, decoder
        self._max_numbers = max_numbers

    def __call__(self, hidden: Tensor) -> Tensor:
        """See `Head`. The scores are logarithms of the probabilities plus 1e-8."""
        experts = self._prior.outputs
        return in_pieces(self._scores, hidden, self._decoder.outputs, experts, self._max_numbers)

    def log_probs(self, scores: Tensor) -> Tensor:
        """See `Head`."""
        return scores

    def _scores(self, hidden: Tensor) -> Tensor:
        prior = over_words(torch.softmax, self._prior(hidden, torch.float32))
        latent = self._latent(hidden).tanh().view(-1, self._decoder.inputs)
        each = over_words(torch.softmax, self._decoder(latent, torch.float32))
        each = each.view(len(hidden), self._prior.outputs, -1).mul_(prior[:, :, None])
        mixture = each[:, 0]
        for expert in range(1, self._prior.outputs):  # torch.sum has no fixed order
            mixture = mixture.add_(each[:, expert])
        return mixture.add(SMALLEST).log_()


class LayeredHead:
    """A head between layers that map rows.

    before: layers between the pooled row and the head. after: layers over its scores.
    outputs: number of scores. widest: the largest width between two layers.
    """

    linear: LinearOp | None = None

    def __init__(
        self,
        before: RowMap | None,
        head: Head,
        after: RowMap | None,
        outputs: int,
        widest: int,
        max_numbers: int = MAX_NUMBERS,
    ) -> None:
        self._before, self._head, self._after = before, head, after
        self._max_numbers = max_numbers
        self._outputs, self._copies = outputs, max(1, -(-widest // outputs))

    def __call__(self, hidden: Tensor) -> Tensor:
        """See `Head`."""
        return in_pieces(self._scores, hidden, self._outputs, self._copies, self._max_numbers)

    def log_probs(self, scores: Tensor) -> Tensor:
        """See `Head`."""
        return self._head.log_probs(scores)

    def _scores(self, hidden: Tensor) -> Tensor:
        scores = self._head(hidden if self._before is None else self._before(hidden))
        return scores if self._after is None else self._after(scores)


def in_pieces(
    scores: Callable[[Tensor], Tensor],
    hidden: Tensor,
    outputs: int,
    copies: int = 1,
    max_numbers: int = MAX_NUMBERS,
) -> Tensor:
    """Apply `scores` to rows; returns (rows, outputs), float32.

    Works on a few rows at a time if their numbers would exceed `max_numbers`.

    copies: number of copies of a row's `outputs` numbers in memory.
    """
    rows = max(1, max_numbers // (outputs * copies) // 8 * 8)
    total = hidden.shape[0]
    if total <= rows:
        result = scores(padded(hidden))
        return result if result.shape[0] == total else result[:total]
    result = hidden.new_empty(total, outputs, dtype=torch.float32)
    for start in range(0, total, rows):
        piece = hidden[start : start + rows]
        result[start : start + rows] = scores(padded(piece))[: len(piece)]
    return result


def padded(x: Tensor) -> Tensor:
    """Append rows of zeros to `x` up to `padded_rows`."""
    rows = x.shape[0]
    missing = padded_rows(rows, x.dtype, x.device) - rows
    return F.pad(x, (0, 0, 0, missing)) if missing else x


def over_words(function: Callable[[Tensor, int], Tensor], scores: Tensor) -> Tensor:
    """Apply torch.softmax or torch.log_softmax to scores (rows, words).

    The bits of a row do not depend on the other rows.
    """
    even = evenly(scores)
    result = function(even, -1)
    return result if even is scores else result[..., : scores.shape[-1]]


def evenly(scores: Tensor) -> Tensor:
    """Pad scores so that a GPU sums every row in the same order.

    torch sums a wide row from its first address that is a multiple of 16 bytes.
    """
    spare = -scores.shape[-1] % 4
    return F.pad(scores, (0, spare), value=-torch.inf) if spare and scores.is_cuda else scores


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda scores: over_words(torch.softmax, scores),
    "sigmoid": sigmoid,
    "none": lambda scores: scores,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return what turns a head's scores (rows, outputs) into what a reply shows, by its name."""
    return _ACTIVATIONS[name]
