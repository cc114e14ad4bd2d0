"""The bundled models in the reference library's terms, and how they are measured.

Their parameters have the names of the library's own example scripts, so that `sruserve import`
knows them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import sru
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from examples.crf import CRF

Question = tuple[Tensor, int]


class LanguageModel(nn.Module):
    """Predict the next character: embedding, SRU, linear output."""

    def __init__(
        self, size: int, options: dict[str, Any], dropout: float = 0.0, input_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding_layer = nn.Embedding(size, options["input_size"])
        self.rnn = sru.SRU(**options, dropout=dropout)
        self.output_layer = nn.Linear(options["hidden_size"], size)
        self.input_drop, self.output_drop = nn.Dropout(input_dropout), nn.Dropout(dropout)

    def forward(self, ids: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Take `ids` (steps, batch) and `state`; return logits (steps, batch, size) and state."""
        h, state = self.rnn(self.input_drop(self.embedding_layer(ids)), state)
        return self.output_layer(self.output_drop(h)), state


def vocabulary(text: bytes) -> list[int]:
    """The byte of every id: the distinct bytes of the whole text, in order."""
    return sorted(set(text))


def encode(text: bytes, vocab: Sequence[int]) -> Tensor:
    """The id of every byte of `text`."""
    table = torch.zeros(256, dtype=torch.long)
    table[list(vocab)] = torch.arange(len(vocab))
    return table[torch.frombuffer(bytearray(text), dtype=torch.uint8).long()]


@torch.no_grad()
def predict(model: LanguageModel, ids: Tensor, chunk: int = 2048) -> Tensor:
    """The logits (characters - 1, size) for `ids[1:]`, in one pass that carries the state on."""
    model.eval()
    state, parts = None, []
    for first in range(0, len(ids) - 1, chunk):
        x = ids[:-1][first : first + chunk]
        logits, state = model(x[:, None], state)
        parts.append(logits[:, 0])
    return torch.cat(parts)


class WordEmbedding(nn.Module):
    """An embedding under the name that the library's classification script gives it."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, width)

    def forward(self, ids: Tensor) -> Tensor:
        """Embed `ids` of any shape."""
        embedded: Tensor = self.embedding(ids)
        return embedded


class Classifier(nn.Module):
    """Label a sequence from its last step: embedding, SRU, linear output."""

    def __init__(
        self, size: int, labels: int, options: dict[str, Any], dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.emb_layer = WordEmbedding(size, options["input_size"])
        self.encoder = sru.SRU(**options, dropout=dropout)
        self.out = nn.Linear(options["hidden_size"], labels)
        self.drop = nn.Dropout(dropout)

    def forward(self, ids: Tensor) -> Tensor:
        """Take `ids` (steps, batch); return the logits (steps, batch, labels) after every step."""
        h, _ = self.encoder(self.drop(self.emb_layer(ids)))
        logits: Tensor = self.out(self.drop(h))
        return logits


class Tagger(nn.Module):
    """Label every byte: embedding, SRU, linear output, CRF.

    labels: in BIO.
    """

    options: ClassVar[dict[str, Any]] = {
        "input_size": 32, "hidden_size": 128, "num_layers": 3, "layer_norm": True,
    }  # fmt: skip

    def __init__(self, labels: list[str], dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, self.options["input_size"])
        self.encoder = sru.SRU(**self.options, dropout=dropout)
        self.out = nn.Linear(self.options["hidden_size"], len(labels))
        self.drop = nn.Dropout(dropout)
        self.crf = CRF(labels)

    def scores(self, ids: Tensor) -> Tensor:
        """Take `ids` (steps, batch); return the scores (steps, batch, labels)."""
        h, _ = self.encoder(self.embedding(ids))
        scores: Tensor = self.out(self.drop(h))
        return scores

    def forward(self, ids: Tensor) -> list[list[int]]:
        """Take `ids` (steps, batch); return the best labels of each sequence."""
        return self.crf.decode(self.scores(ids))


def read_questions(path: Path, tokenizer: Tokenizer) -> list[Question]:
    """The questions in a file of `LABEL words...` lines."""
    lines = (line.split(" ", 1) for line in path.read_text(encoding="utf-8").splitlines())
    return [(torch.tensor(tokenizer.encode(text).ids), int(label)) for label, text in lines]


@torch.no_grad()
def correct(model: Classifier, questions: Sequence[Question]) -> int:
    """How many questions are labelled right, each on its own: batch 1, no padding."""
    model.eval()
    return sum(int(model(ids[:, None])[-1, 0].argmax()) == label for ids, label in questions)
