# mypy: disable-error-code="no-any-return"
"""Networks with modules of other libraries than torch."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.tracing.likenesses import QRNN, SRU, LRNLike, QRNNLayer
from tests.tracing.networks.network import CLASSES, WORDS, Network


class SRUClassifier(nn.Module):
    """A network with modules that look like those of `sru`, whose releases have their own tests."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 9)
        self.sru = SRU(9, 6, **options)
        self.fc = nn.Linear(self.sru.output_size, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.sru(self.emb(x).transpose(0, 1))
        return self.fc(out[-1])


class QRNNClassifier(nn.Module):
    """A network with modules that look like `torchqrnn`."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 9)
        layers = [QRNNLayer(9, 6, window=2), QRNNLayer(6, 6)]
        self.qrnn = QRNN(9, 6, layers=layers)
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.qrnn(self.emb(x).permute(1, 0, 2))
        return self.fc(out[-1])


class LRNClassifier(nn.Module):
    """A network with modules that look like those of the LRN repository."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 9)
        self.rnn = LRNLike(kind, 9, 6, num_layers=2)
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        zeros = x.new_zeros(2, len(x), 6, dtype=torch.float32)
        start = (zeros, zeros) if self.rnn.c_on else zeros
        out, _ = self.rnn(self.emb(x).transpose(0, 1), start)
        return self.fc(out[-1])


NETWORKS = {
    "stacked SRU with an input projection": Network(
        lambda: SRUClassifier(num_layers=3, proj_input_to_hidden_first=True, rescale=True)
    ),
    "a bidirectional SRU with norms": Network(
        lambda: SRUClassifier(bidirectional=True, layer_norm=True, projection_size=4)
    ),
    "a QRNN": Network(QRNNClassifier, config={"model_type": "qrnn"}),
    "an LRN": Network(lambda: LRNClassifier("lrn"), config={"model_type": "lrn"}),
    "an ATR of the LRN repository": Network(lambda: LRNClassifier("atr")),
    "a GRU of the LRN repository": Network(lambda: LRNClassifier("gru")),
    "an LSTM of the LRN repository": Network(lambda: LRNClassifier("lstm")),
    "an SRU of the LRN repository": Network(lambda: LRNClassifier("sru")),
}
