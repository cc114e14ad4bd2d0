"""The ways from a row of the stack's outputs to a score for every class or word."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from sruserve.kernels import Multiply, padded_rows, uses_triton
from sruserve.model.clusters import Cluster

LOGITS = 1 << 22  # numbers that a head may hold at a time beside its result
_SMALLEST = 1e-8  # what a mixture's training adds to a probability before the logarithm


class Head(Protocol):
    """Scores of rows.

    product: the plain linear layer, where there is nothing else; for steps in a GPU's burst.
    """

    product: Multiply | None

    def __call__(self, hidden: Tensor) -> Tensor:
        """Score rows (rows, width): (rows, outputs), float32; their softmax is what it predicts."""
        ...

    def log_probs(self, scores: Tensor) -> Tensor:
        """Logarithms of probabilities as training reports them, of what a call returned."""
        ...


class LinearHead:
    """One linear layer, then a softmax."""

    def __init__(self, product: Multiply) -> None:
        self.product: Multiply | None = product
        self._product = product

    def __call__(self, hidden: Tensor) -> Tensor:
        """See `Head`."""
        if uses_triton(hidden.device):  # rounded once, as in a step of a burst
            return self._product(hidden, torch.float32)
        return _in_pieces(self._scores, hidden, self._product.outputs)

    def log_probs(self, scores: Tensor) -> Tensor:
        """See `Head`."""
        return over_words(torch.log_softmax, scores)

    def _scores(self, hidden: Tensor) -> Tensor:
        return self._product(hidden, torch.float32)


class AdaptiveHead:
    """An adaptive softmax (Grave et al. 2017), columns as in the SRU++ experiments.

    A word's probability is its cluster's times its own within the cluster. The first product
    scores the first cluster's words and then the other clusters, the last of them first.

    projection: (width) -> (sum of the clusters' widths).
    products: (cluster's width) -> (its words), the first (its words and the other clusters).
    """

    product: Multiply | None = None

    def __init__(
        self, clusters: Sequence[Cluster], projection: Multiply, products: Sequence[Multiply]
    ) -> None:
        self._clusters = clusters
        self._projection, self._products = projection, products

    def __call__(self, hidden: Tensor) -> Tensor:
        """See `Head`: the scores are logarithms of probabilities."""
        return _in_pieces(self._scores, hidden, self._clusters[-1].end)

    def log_probs(self, scores: Tensor) -> Tensor:
        """See `Head`."""
        return scores

    def _scores(self, hidden: Tensor) -> Tensor:
        found = hidden.new_empty(len(hidden), self._clusters[-1].end, dtype=torch.float32)
        own = torch.split(self._projection(hidden), [c.width for c in self._clusters], 1)
        first = self._products[0](own[0].contiguous(), torch.float32)
        first = over_words(torch.log_softmax, first)
        found[:, : self._clusters[0].end] = first[:, : self._clusters[0].end]
        for i, cluster in enumerate(self._clusters[1:], 1):
            within = self._products[i](own[i].contiguous(), torch.float32)
            within = over_words(torch.log_softmax, within)
            torch.add(within, first[:, -i, None], out=found[:, cluster.first : cluster.end])
        return found


class MixtureHead:
    """A mixture of softmaxes (Yang et al. 2018), as in the LRN repository's language model.

    p = sum over experts k of softmax(prior h)_k * softmax(decoder tanh(latent h)_k), and its
    scores are log(p + 1e-8).

    prior: (width) -> (experts). latent: (width) -> (experts * n). decoder: (n) -> (outputs).
    """

    product: Multiply | None = None

    def __init__(self, prior: Multiply, latent: Multiply, decoder: Multiply) -> None:
        self._prior, self._latent, self._decoder = prior, latent, decoder

    def __call__(self, hidden: Tensor) -> Tensor:
        """See `Head`: the scores are logarithms of probabilities, each 1e-8 too large."""
        experts = self._prior.outputs
        return _in_pieces(self._scores, hidden, self._decoder.outputs, experts)

    def log_probs(self, scores: Tensor) -> Tensor:
        """See `Head`."""
        return scores

    def _scores(self, hidden: Tensor) -> Tensor:
        prior = over_words(torch.softmax, self._prior(hidden, torch.float32))
        latent = self._latent(hidden).tanh().view(-1, self._decoder.inputs)
        each = over_words(torch.softmax, self._decoder(latent, torch.float32))
        each = each.view(len(hidden), self._prior.outputs, -1).mul_(prior[:, :, None])
        found = each[:, 0]
        for expert in range(1, self._prior.outputs):  # torch's sum has no fixed order
            found = found.add_(each[:, expert])
        return found.add(_SMALLEST).log_()


def _in_pieces(
    scores: Callable[[Tensor], Tensor], hidden: Tensor, outputs: int, copies: int = 1
) -> Tensor:
    """`scores` of rows, (rows, outputs), a few rows at a time where there are too many numbers.

    copies: how many times `outputs` numbers a row holds on the way.
    """
    rows = max(1, LOGITS // (outputs * copies) // 8 * 8)
    if len(hidden) <= rows:
        return scores(padded(hidden))[: len(hidden)]
    found = hidden.new_empty(len(hidden), outputs, dtype=torch.float32)
    for start in range(0, len(hidden), rows):
        piece = hidden[start : start + rows]
        found[start : start + rows] = scores(padded(piece))[: len(piece)]
    return found


def padded(x: Tensor) -> Tensor:
    """Rows `x`, with zeros after them up to `padded_rows`; as they are where Triton multiplies."""
    missing = 0 if uses_triton(x.device) else padded_rows(len(x)) - len(x)
    return F.pad(x, (0, 0, 0, missing)) if missing else x


def over_words(function: Callable[[Tensor, int], Tensor], scores: Tensor) -> Tensor:
    """torch.softmax or torch.log_softmax of scores (rows, words), with bits of each row's own."""
    words = scores.shape[-1]
    return function(evenly(scores), -1)[..., :words]


def evenly(scores: Tensor) -> Tensor:
    """Scores whose rows a GPU all sums in one order, whatever row they are in.

    torch sums a wide row from its first address that is a multiple of 16 bytes.
    """
    spare = -scores.shape[-1] % 4
    return F.pad(scores, (0, spare), value=-torch.inf) if spare and scores.is_cuda else scores
