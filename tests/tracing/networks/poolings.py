# mypy: disable-error-code="no-any-return"
"""Classifiers by how they make one row of all steps."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.tracing.networks.network import CLASSES, WORDS, Network


class FinalStates(nn.Module):
    """Both directions' final states, the standard form of a BiLSTM classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 8)
        self.encoder = nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        _, (hidden, _) = self.encoder(self.emb(x))
        return self.fc(torch.cat((hidden[-2, :, :], hidden[-1, :, :]), dim=1))


class FinalByHalves(FinalStates):
    """The same states, read from the outputs."""

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.encoder(self.emb(x))
        return self.fc(torch.cat((out[:, -1, :6], out[:, 0, 6:]), 1))


class AllLayers(FinalStates):
    """The final states of all layers, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        _, (h_n, _) = self.encoder(self.emb(x))
        return self.fc(h_n.permute(1, 0, 2).reshape(x.shape[0], -1))


class ViewedStates(FinalStates):
    """The last layer's states, which the documentation of torch separates by a view."""

    def forward(self, x: Tensor) -> Tensor:
        _, (_, c_n) = self.encoder(self.emb(x))
        last = c_n.view(2, 2, -1, 6)[-1]
        return self.fc(last.transpose(0, 1).flatten(1))


class SummedDirections(FinalStates):
    """Both directions, added step by step, and the mean over time."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.encoder(self.emb(x))
        out = out[..., :6] + out[..., 6:]
        return self.fc(out.sum(1) / out.size(1))


class MeanPooled(nn.Module):
    """Time first, as torch's default is."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 8)
        self.rnn = nn.RNN(8, 6, nonlinearity="relu")
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.rnn(self.emb(x.t()))
        return self.out(hidden.mean(dim=0))


class MaxPooled(nn.Module):
    """Max pooling over time by a layer for images and signals."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 8)
        self.rnn = nn.GRU(8, 6, bidirectional=True, batch_first=True)
        self.pool = nn.AdaptiveMaxPool1d(1)
        self.out = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.rnn(self.emb(x))
        pooled = self.pool(hidden.permute(0, 2, 1)).squeeze(-1)
        return self.out(F.relu(pooled))


class Attention(nn.Module):
    """Attention of Zhou et al. 2016: a vector scores tanh of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 8)
        self.lstm = nn.LSTM(8, 6, bidirectional=True, batch_first=True)
        self.w = nn.Parameter(torch.randn(12))
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.lstm(self.emb(x))
        alpha = F.softmax(torch.matmul(torch.tanh(h), self.w), dim=1).unsqueeze(-1)
        return self.fc(F.relu(torch.sum(h * alpha, 1)))


class BilinearAttention(Attention):
    """The same sum as a product of matrices, of scores by a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.lstm(self.emb(x))
        weights = torch.softmax(self.score(h).squeeze(-1), dim=-1)
        return self.fc(torch.bmm(weights.unsqueeze(1), h).squeeze(1))


class AveragedStates(FinalStates):
    """The mean of all final states, and activations of torch that are others in disguise."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.fc = nn.PReLU(init=0.3), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        _, (h, _) = self.encoder(self.emb(x))
        return self.fc(F.selu(self.act(h.mean(0))))


NETWORKS = {
    "final states of a BiLSTM": Network(FinalStates, head={"final": ("1.h",)}),
    "final states from the outputs": Network(FinalByHalves, head={"final": ("1.h",)}),
    "final states of all layers": Network(AllLayers, head={"final": ("0.h", "1.h")}),
    "cell states by a view": Network(ViewedStates, head={"final": ("1.c",)}),
    "directions that are added": Network(SummedDirections, head={"pooling": "mean"}),
    "mean pooling": Network(MeanPooled, head={"pooling": "mean"}),
    "max pooling": Network(MaxPooled, head={"pooling": "max"}),
    "attention by a vector": Network(Attention, head={"pooling": "attention"}),
    "attention by a network": Network(BilinearAttention, head={"pooling": "attention"}),
    "averaged states": Network(AveragedStates, head={"final": ("0.h", "1.h")}),
}
