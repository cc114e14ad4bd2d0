# mypy: disable-error-code="no-any-return"
"""Networks with a result for every step: taggers and language models."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.tracing.networks.network import CLASSES, WORDS, Network


class Tagger(nn.Module):
    """A label for each word, with a classes' axis where CrossEntropyLoss wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 8)
        self.lstm = nn.LSTM(8, 6, bidirectional=True, batch_first=True)
        self.hidden2tag = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden2tag(self.lstm(self.emb(x))[0]).permute(0, 2, 1)


class CRF(nn.Module):
    """As of `pytorch-crf`, but for its loss: the best of all paths, by trying each."""

    def __init__(self, labels: int, batch_first: bool = False) -> None:
        super().__init__()
        self.num_tags, self.batch_first = labels, batch_first
        self.start_transitions = nn.Parameter(torch.randn(labels))
        self.end_transitions = nn.Parameter(torch.randn(labels))
        self.transitions = nn.Parameter(torch.randn(labels, labels))

    def decode(self, emissions: Tensor, mask: Tensor | None = None) -> list[list[int]]:
        assert mask is None
        emissions = emissions if self.batch_first else emissions.transpose(0, 1)
        return [self._best(steps) for steps in emissions]

    def _best(self, steps: Tensor) -> list[int]:
        best = [(float(s), [i]) for i, s in enumerate(self.start_transitions + steps[0])]
        for step in steps[1:]:
            best = [
                max(
                    (score + float(self.transitions[path[-1], i] + step[i]), [*path, i])
                    for score, path in best
                )
                for i in range(self.num_tags)
            ]
        return max((score + float(self.end_transitions[path[-1]]), path) for score, path in best)[1]


class CRFTagger(nn.Module):
    """A loss in training, the best path of labels without targets."""

    def __init__(self, masked: bool = False) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 8)
        self.lstm = nn.LSTM(8, 6, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(12, CLASSES)
        self.crf = CRF(CLASSES, batch_first=True)
        self.masked = masked

    def forward(self, x: Tensor, tags: Tensor | None = None) -> Any:
        emissions = self.fc(self.lstm(self.emb(x))[0])
        if self.masked:
            return self.crf.decode(emissions, mask=x != 0)
        return self.crf.decode(emissions)


class LanguageModel(nn.Module):
    """The language model of torch's examples: time first, flattened scores, a state beside."""

    def __init__(self, tied: bool = False, words: int = WORDS) -> None:
        super().__init__()
        self.encoder = nn.Embedding(words, 8)
        self.rnn = nn.LSTM(8, 8, 2, dropout=0.2)
        self.decoder = nn.Linear(8, words)
        if tied:
            self.decoder.weight = self.encoder.weight
        self.words = words

    def forward(self, tokens: Tensor, hidden: Any = None) -> tuple[Tensor, Any]:
        out, hidden = self.rnn(self.encoder(tokens), hidden)
        decoded = self.decoder(out).view(-1, self.words)
        return F.log_softmax(decoded, dim=1), hidden


class ScaledTied(nn.Module):
    """A tied embedding, scaled as in Transformers; scores in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 8)
        self.gru = nn.GRU(8, 8, batch_first=True)

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        out, _ = self.gru(self.emb(ids) * math.sqrt(8))
        result = {"logits": F.linear(out, self.emb.weight)}
        if labels is not None:
            result["loss"] = F.cross_entropy(result["logits"].flatten(0, 1), labels.flatten())
        return result


class NextCharacter(nn.Module):
    """One-hot characters, and the scores of the next one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WORDS, 8, batch_first=True)
        self.fc = nn.Linear(8, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.lstm(F.one_hot(x, WORDS).float())
        return self.fc(out[:, -1])


NETWORKS = {
    "a tagger": Network(Tagger, "tag", {"labels": ["O", "B", "I"]}),
    "a language model": Network(LanguageModel, "generate", head={"tied": False}),
    "a tied language model": Network(lambda: LanguageModel(True), "generate", head={"tied": True}),
    "a scaled and tied language model": Network(ScaledTied, "generate", head={"tied": True}),
    "one-hot characters": Network(NextCharacter, "generate", {"tokenizer": list(range(WORDS))}),
}
