# mypy: disable-error-code="no-any-return"
"""Classifiers of words, as tutorials and courses write them."""

import warnings
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.tracing.networks.network import CLASSES, WORDS, Network
from tests.tracing.networks.poolings import FinalStates


class LitSentiment(nn.Module):
    """A LightningModule, but for its base class."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 6, num_layers=2, batch_first=True, dropout=0.3)
        self.drop = nn.Dropout(0.5)
        self.classifier = nn.Linear(6, CLASSES)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x: Tensor) -> Tensor:
        embedded = self.drop(self.embedding(x))
        out, _ = self.lstm(embedded)
        return self.classifier(self.drop(out[:, -1, :]))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return self.loss(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class CustomNames(nn.Module):
    """Start states made by hand, and a log-softmax, as in the tutorials."""

    def __init__(self, hidden: int = 7, depth: int = 2) -> None:
        super().__init__()
        self.hidden, self.depth = hidden, depth
        self.palabras = nn.Embedding(WORDS, 6)
        self.memoria = nn.GRU(6, hidden, depth, batch_first=True)
        self.salida = nn.Linear(hidden, CLASSES)

    def forward(self, frase: Tensor) -> Tensor:
        h0 = torch.zeros(self.depth, frase.size(0), self.hidden).to(frase.device)
        salida, _ = self.memoria(self.palabras(frase), h0)
        return F.log_softmax(self.salida(salida[:, -1]), dim=1)


class SentimentRNN(nn.Module):
    """A network of a course: zeros made from a weight, and scores of all steps."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.lstm = nn.LSTM(8, 6, 2, dropout=0.5, batch_first=True)
        self.dropout, self.fc, self.sig = nn.Dropout(0.3), nn.Linear(6, 1), nn.Sigmoid()

    def init_hidden(self, batch: int) -> tuple[Tensor, Tensor]:
        weight = next(self.parameters()).detach()
        return weight.new(2, batch, 6).zero_(), weight.new(2, batch, 6).zero_()

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        lstm_out, hidden = self.lstm(self.embedding(x.long()), self.init_hidden(x.size(0)))
        out = self.fc(self.dropout(lstm_out.contiguous().view(-1, 6)))
        out = self.sig(out).view(x.size(0), -1)
        return out[:, -1], hidden


class MultiLabel(nn.Module):
    """Labels that do not exclude each other."""

    def __init__(self, sigmoid: bool) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 8)
        self.lstm = nn.LSTM(8, 6, batch_first=True)
        self.fc = nn.Linear(6, CLASSES)
        self.sigmoid = sigmoid

    def forward(self, x: Tensor) -> Tensor:
        logits = self.fc(self.lstm(self.emb(x))[0].amax(1))
        return torch.sigmoid(logits) if self.sigmoid else logits


class BinaryLogit(nn.Module):
    """One logit for two classes, for BCEWithLogitsLoss."""

    def __init__(self, sigmoid: bool = False) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 8)
        self.lstm = nn.LSTM(8, 6, batch_first=True, proj_size=3)
        self.fc = nn.Linear(3, 1)
        self.sigmoid = sigmoid

    def forward(self, x: Tensor) -> Tensor:
        logit = self.fc(self.lstm(self.emb(x))[0][:, -1]).squeeze()
        return logit.sigmoid() if self.sigmoid else logit


class TwoStacked(nn.Module):
    """Two modules of different widths, with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 8)
        self.first = nn.LSTM(8, 7, batch_first=True)
        self.drop = nn.Dropout(0.3)
        self.second = nn.LSTM(7, 5, batch_first=True, bias=False)
        self.fc = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.first(self.emb(x))
        _, (h, _) = self.second(self.drop(x))
        return self.fc(h.squeeze(0))


def compiled() -> nn.Module:
    """A module that `torch.compile` wraps; it is not run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own compiler
        return cast("nn.Module", torch.compile(LitSentiment()))


def partly_compiled() -> nn.Module:
    """A module with a compiled part, inside DataParallel."""
    module = FinalStates()
    head = nn.Sequential(nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module.fc = torch.compile(head)  # type: ignore[assignment]
    return nn.DataParallel(module)


NETWORKS = {
    "a Lightning module": Network(LitSentiment, head={"pooling": "last"}),
    "a compiled module": Network(compiled),
    "a compiled part, in DataParallel": Network(partly_compiled, head={"pooling": "final"}),
    "custom names": Network(CustomNames, options={"labels": ["a", "b", "c"]}),
    "zeros from a weight": Network(SentimentRNN, options={"labels": ["negative", "positive"]}),
    "labels with sigmoids": Network(lambda: MultiLabel(True), head={"activation": "sigmoid"}),
    "labels with logits": Network(
        lambda: MultiLabel(False),
        options={"activation": "sigmoid"},
        head={"activation": "sigmoid", "pooling": "max"},
    ),
    "a binary logit": Network(BinaryLogit, options={"labels": ["no", "yes"]}),
    "a binary probability": Network(
        lambda: BinaryLogit(True), options={"labels": ["no", "yes"]}, head={"activation": "softmax"}
    ),
    "a binary probability of one label": Network(
        lambda: BinaryLogit(True), options={"labels": ["yes"]}, head={"activation": "sigmoid"}
    ),
    "two stacked modules": Network(TwoStacked),
}
