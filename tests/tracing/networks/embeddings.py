# mypy: disable-error-code="no-any-return"
"""Networks that read an id by more than one table."""

import math

import torch
from torch import Tensor, nn

from tests.tracing.networks.network import CLASSES, WORDS, Network


class Summed(nn.Module):
    """A frozen table and one that was trained beside it, scaled; the second one has more rows."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Embedding(WORDS, 8, padding_idx=0).requires_grad_(False)
        self.own = nn.Embedding(WORDS + 9, 8)
        self.lstm = nn.LSTM(8, 6, batch_first=True)
        self.fc = nn.Linear(6, CLASSES)

    def rows(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.own(x) * math.sqrt(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(self.rows(x))[0][:, -1])


class SideBySide(Summed):
    """Two tables as one of twice the width, with a projection before the recurrent layers."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 8)

    def rows(self, x: Tensor) -> Tensor:
        return torch.tanh(self.project(torch.cat([self.frozen(x), self.own(x)], dim=-1)))


class Projected(Summed):
    """The sum of one table and of a narrow one that is projected, and then a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.widen = nn.Embedding(WORDS, 3, padding_idx=1), nn.Linear(3, 8)
        self.norm = nn.LayerNorm(8)

    def rows(self, x: Tensor) -> Tensor:
        return self.norm(sum([self.own(x), torch.relu(self.widen(self.narrow(x)))]))


class Gated(Summed):
    """Rows weighted by a number for each id and by a gate of their own; a type that is constant."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.kind = nn.Embedding(WORDS, 1), nn.Embedding(2, 8)
        self.gate = nn.Linear(8, 8)

    def rows(self, x: Tensor) -> Tensor:
        own = self.own(x)
        return self.weight(x) * own * torch.sigmoid(self.gate(own)) + self.kind(torch.ones_like(x))


class TiedSum(nn.Module):
    """A language model whose scores use one of its two tables."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.more = nn.Embedding(WORDS, 8), nn.Embedding(WORDS, 8)
        self.gru = nn.GRU(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.gru(self.words(x) + self.more(x))
        return out @ self.words.weight.t()


NETWORKS = {
    "a sum of embeddings": Network(Summed, config={"vocab_size": WORDS, "input_layers": ()}),
    "embeddings side by side": Network(SideBySide, config={"input_width": 16}),
    "a sum of projected embeddings": Network(Projected, config={"vocab_size": WORDS}),
    "gated embeddings": Network(Gated, config={"vocab_size": WORDS}),
    "a sum of embeddings, tied to one": Network(TiedSum, "generate", head={"tied": False}),
}
