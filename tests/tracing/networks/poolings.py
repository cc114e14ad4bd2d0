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


class ConcatPooling(nn.Module):
    """The last step, the maximum and the mean side by side, as of ULMFiT."""

    def __init__(self, bidirectional: bool = False) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 8)
        self.rnn = nn.LSTM(8, 6, 2, batch_first=True, bidirectional=bidirectional)
        width = 18 * (1 + bidirectional)
        self.head = nn.Sequential(nn.BatchNorm1d(width), nn.Dropout(0.4), nn.Linear(width, CLASSES))

    def pooled(self, out: Tensor, h: Tensor) -> list[Tensor]:
        del h
        longest = F.adaptive_max_pool1d(out.permute(0, 2, 1), 1).squeeze(2)
        return [out[:, -1], longest, out.mean(1)]

    def forward(self, x: Tensor) -> Tensor:
        out, (h, _) = self.rnn(self.emb(x))
        return self.head(torch.cat(self.pooled(out, h), 1))


class ConcatStates(ConcatPooling):
    """The final states of both directions, between the maximum and the mean."""

    def __init__(self) -> None:
        super().__init__(bidirectional=True)

    def pooled(self, out: Tensor, h: Tensor) -> list[Tensor]:
        return [out.amax(1), torch.cat([h[-2], h[-1]], 1), out.sum(1) / out.shape[1]]


class ConcatLayers(ConcatPooling):
    """The states of the first layer, and activations and products of each row by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Linear(6, 6)

    def pooled(self, out: Tensor, h: Tensor) -> list[Tensor]:
        return [F.relu(self.narrow(out.mean(1))), F.relu(h[0]), F.relu(h[-1] * 2)]


class SummedPoolings(ConcatPooling):
    """The sum of the mean and the maximum, beside the last step."""

    def pooled(self, out: Tensor, h: Tensor) -> list[Tensor]:
        both = out.mean(1) + out.max(1)[0]
        return [both, h[-1], both]


NETWORKS = {
    "concat pooling": Network(ConcatPooling, head={"pooling": ("last", "max", "mean")}),
    "concat pooling of both directions": Network(
        lambda: ConcatPooling(True), head={"pooling": ("last", "max", "mean")}
    ),
    "concat pooling with final states": Network(
        ConcatStates, head={"pooling": ("max", "final", "mean"), "final": ("1.h",)}
    ),
    "concat pooling with states of two layers": Network(
        ConcatLayers, head={"pooling": ("mean", "final"), "final": ("0.h", "1.h")}
    ),
    "summed poolings": Network(SummedPoolings, head={"pooling": ("mean", "max", "last")}),
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
