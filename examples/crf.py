"""A linear-chain CRF (Lafferty et al. 2001), under the parameter names of `pytorch-crf`."""

import torch
from torch import Tensor, nn

FORBIDDEN = -1e4  # the score of a label that may not follow another


class CRF(nn.Module):
    """Scores whole sequences of labels by their steps and by their neighbours.

    labels: in BIO; `I-X` follows `B-X` and `I-X` alone.
    """

    def __init__(self, labels: list[str]) -> None:
        super().__init__()
        size = len(labels)
        transitions, start = torch.zeros(size, size), torch.zeros(size)
        for to, label in enumerate(labels):
            if label.startswith("I-"):
                start[to] = FORBIDDEN
                kinds = [before.partition("-")[2] for before in labels]
                transitions[[kind != label[2:] for kind in kinds], to] = FORBIDDEN
        self.start_transitions = nn.Parameter(start)
        self.end_transitions = nn.Parameter(torch.zeros(size))
        self.transitions = nn.Parameter(transitions)  # (from, to)

    def loss(self, scores: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
        """The mean negative log-likelihood of the labels, per sequence.

        scores: (steps, batch, labels). labels: (steps, batch). lengths: (batch), at least 1.
        """
        return (self._of_all(scores, lengths) - self._of(scores, labels, lengths)).mean()

    def _of(self, scores: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
        """The score of each sequence of labels, (batch)."""
        steps, batch = labels.shape
        inside = torch.arange(steps)[:, None] < lengths
        emitted = scores.gather(2, labels[..., None])[..., 0] * inside
        moved = self.transitions[labels[:-1], labels[1:]] * inside[1:]
        last = labels[lengths - 1, torch.arange(batch)]
        ends = self.start_transitions[labels[0]] + self.end_transitions[last]
        return emitted.sum(0) + moved.sum(0) + ends

    def _of_all(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """The logarithm of the sum over all sequences of labels, (batch)."""
        forward = self.start_transitions + scores[0]
        for step in range(1, len(scores)):
            paths = forward[:, :, None] + self.transitions + scores[step][:, None]
            inside = (step < lengths)[:, None]
            forward = torch.where(inside, paths.logsumexp(1), forward)
        return (forward + self.end_transitions).logsumexp(1)

    @torch.no_grad()
    def decode(self, scores: Tensor) -> list[list[int]]:
        """The best labels of each sequence of `scores` (steps, batch, labels)."""
        best, sources = self.start_transitions + scores[0], list[Tensor]()
        for step in scores[1:]:
            paths = best[:, :, None] + self.transitions + step[:, None]
            best, source = paths.max(1)
            sources.append(source)
        labels = [(best + self.end_transitions).argmax(1)]
        for source in reversed(sources):
            labels.append(source.gather(1, labels[-1][:, None])[:, 0])
        decoded: list[list[int]] = torch.stack(labels[::-1], 1).tolist()
        return decoded
