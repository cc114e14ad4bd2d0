# mypy: disable-error-code="no-any-return"
"""Networks that read features: heads of several layers, regressors."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.tracing.networks.network import CLASSES, FEATURES, Network


class Series(nn.Module):
    """A regressor of plain numbers, one a step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 6, batch_first=True)
        self.linear = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.lstm(x.unsqueeze(-1))[0][:, -1]).squeeze(-1)


class MLPHead(nn.Module):
    """Layers and a residual block after the recurrent ones."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, 6, batch_first=True)
        self.block = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Dropout(0.2), nn.Linear(9, 6))
        self.head = nn.Sequential(nn.Linear(6, 4), nn.LeakyReLU(0.2), nn.Linear(4, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        _, (h, _) = self.lstm(x)
        h = h[-1]
        h = h + self.block(h)
        return self.head(h).softmax(dim=-1)


class LayerNormHead(nn.Module):
    """A projected and normalized input, and a normalized output."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(FEATURES, 8)
        self.norm_in, self.norm = nn.LayerNorm(8), nn.LayerNorm(6, eps=1e-6)
        self.gru = nn.GRU(8, 6, batch_first=True)
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norm_in(self.project(x)))
        out, _ = self.gru(x)
        return self.fc(self.norm(out[:, -1]))


class Regressor(nn.Module):
    """Batch norm of the features, normalized targets."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(FEATURES)
        self.lstm = nn.LSTM(FEATURES, 6, batch_first=True)
        self.fc = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2))
        self.register_buffer("mean", torch.tensor([20.0, -3.0]))
        self.register_buffer("std", torch.tensor([5.0, 0.5]))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        out, _ = self.lstm(x)
        return self.fc(out[:, -1]) * self.std + self.mean


class Quantiles(nn.Module):
    """Three quantiles of one value, at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(FEATURES, 6, num_layers=2, batch_first=True)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.gru((x - 0.5) / 2)[0])


class FeatureClasses(nn.Module):
    """A sequence of features to classes, by the mean of each step's scores."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(FEATURES, 6, batch_first=True)
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x)[0]).mean(1)


NETWORKS = {
    "a series of numbers": Network(
        Series, "regress", {"names": ["next"], "examples": [[0.5], [0.1, 0.9, -2.0]]}
    ),
    "a head of several layers": Network(MLPHead, head={"pooling": "last"}),
    "a head with a norm": Network(LayerNormHead, config={"input_width": FEATURES}),
    "a regressor with batch norms": Network(
        Regressor, "regress", {"names": ["temperature", "pressure"], "units": ["°C", "bar"]}
    ),
    "quantiles at every step": Network(
        Quantiles, "regress", {"names": ["load"], "quantiles": [0.1, 0.5, 0.9]}
    ),
    "features to classes": Network(FeatureClasses, head={"pooling": "mean"}),
}
