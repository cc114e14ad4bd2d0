# mypy: disable-error-code="no-any-return"
"""Networks as people write them, each with the task that it was trained for.

A network's loss is only there to give it weights that random initialization does not have.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.tracing.likenesses import QRNN, SRU, LRNLike, QRNNLayer

WORDS, FEATURES, CLASSES = 30, 5, 3


@dataclass(frozen=True)
class Network:
    """A module to build, how it is saved, and what the folder is expected to hold.

    head: some fields of the folder's head. config: some fields of its config.
    """

    build: Callable[[], nn.Module]
    task: str = "classify"
    options: dict[str, Any] = field(default_factory=dict)
    head: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


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


class FeatureClasses(nn.Module):
    """A sequence of features to classes, by the mean of each step's scores."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(FEATURES, 6, batch_first=True)
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x)[0]).mean(1)


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
    "zeros from a weight": Network(SentimentRNN, options={"labels": ["negative", "positive"]}),
    "a series of numbers": Network(
        Series, "regress", {"names": ["next"], "examples": [[0.5], [0.1, 0.9, -2.0]]}
    ),
    "a head of several layers": Network(MLPHead, head={"pooling": "last"}),
    "a head with a norm": Network(LayerNormHead, config={"input_width": FEATURES}),
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
    "a regressor with batch norms": Network(
        Regressor, "regress", {"names": ["temperature", "pressure"], "units": ["°C", "bar"]}
    ),
    "quantiles at every step": Network(
        Quantiles, "regress", {"names": ["load"], "quantiles": [0.1, 0.5, 0.9]}
    ),
    "a tagger": Network(Tagger, "tag", {"labels": ["O", "B", "I"]}),
    "a language model": Network(LanguageModel, "generate", head={"tied": False}),
    "a tied language model": Network(lambda: LanguageModel(True), "generate", head={"tied": True}),
    "a scaled and tied language model": Network(ScaledTied, "generate", head={"tied": True}),
    "one-hot characters": Network(NextCharacter, "generate", {"tokenizer": list(range(WORDS))}),
    "features to classes": Network(FeatureClasses, head={"pooling": "mean"}),
    "two stacked modules": Network(TwoStacked),
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
