# mypy: disable-error-code="no-any-return"
"""Networks that a model folder cannot express, each wrong in one line."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.tracing.networks.network import CLASSES, FEATURES, WORDS
from tests.tracing.networks.steps import CRFTagger


class Base(nn.Module):
    """A classifier of words, which the others change."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 6)
        self.lstm = nn.LSTM(6, 5, batch_first=True, **options)
        self.fc = nn.Linear(5, CLASSES)


class Reversed(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(self.emb(x.flip(1)))[0][:, -1])


class First(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(self.emb(x))[0][:, 0])


class Middle(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(self.emb(x))[0][:, -2])


class PaddedMean(Base):
    """A mean over 50 positions, of which many are padding."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.lstm(self.emb(F.pad(x, (0, 50 - x.shape[1]))))[0]
        return self.fc(out.mean(1))


class MaskedMean(Base):
    def forward(self, x: Tensor) -> Tensor:
        mask = (x != 0).unsqueeze(-1).float()
        out = self.lstm(self.emb(x))[0]
        return self.fc((out * mask).sum(1) / mask.sum(1))


class Summed(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(self.emb(x))[0].sum(1))


class HalvedSum(Base):
    """A sum, divided by a number that is the length of one batch alone."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(self.emb(x))[0].sum(1) / 7)


class MeanOfTanh(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.lstm(self.emb(x))[0]).mean(1))


class MaxOfGelu(Base):
    """The function falls before it rises, so its maximum is not that of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.gelu(self.lstm(self.emb(x))[0]).amax(1))


class Watched(Base):
    """Looks at each step after all is computed."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.lstm(self.emb(x))[0]
        scores = self.fc(out[:, -1])
        self.watched = [out[:, t] for t in range(x.shape[1])]
        return scores


class TeacherForced(Base):
    def forward(self, x: Tensor, ratio: float = 0.5) -> Tensor:
        rows = self.emb(x)
        outs, state = [], None
        for t in range(x.shape[1]):
            out, state = self.lstm(rows[:, t : t + 1], state)
            outs.append(out if random.random() < ratio else out * 1)
        return self.fc(torch.cat(outs, 1)[:, -1])


class Sine(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.sin(self.lstm(self.emb(x))[0][:, -1]))


class TwoInputs(Base):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.fc(self.lstm(self.emb(x))[0][:, -1])


class MaxNorm(Base):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 6, max_norm=1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(self.emb(x))[0][:, -1])


class Dropped(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.dropout(self.lstm(self.emb(x))[0][:, -1], 0.5))


class PackedSteps(Base):
    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.full((len(x),), x.shape[1])
        packed = pack_padded_sequence(self.emb(x), lengths, batch_first=True)
        out, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.fc(out[:, -1])


class LearnedStart(Base):
    def __init__(self) -> None:
        super().__init__()
        self.h0, self.c0 = nn.Parameter(torch.ones(1, 1, 5)), nn.Parameter(torch.ones(1, 1, 5))

    def forward(self, x: Tensor) -> Tensor:
        start = (self.h0.repeat(1, len(x), 1), self.c0.repeat(1, len(x), 1))
        return self.fc(self.lstm(self.emb(x), start)[0][:, -1])


class BatchStatistics(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.lstm(self.emb(x))[0][:, -1]))


class ReadByNumpy(Base):
    def forward(self, x: Tensor) -> Tensor:
        seen = np.from_dlpack(x)  # type: ignore[arg-type, unused-ignore]
        return self.fc(self.lstm(self.emb(x))[0][:, -1]) + float((seen == 7).mean() > 0.9)


class ReadAsStorage(Base):
    def forward(self, x: Tensor) -> Tensor:
        out = self.lstm(self.emb(x))[0][:, -1]
        stored = out.untyped_storage()
        return self.fc(out) * (1 if len(bytes(stored)) else 2)


class Counting(Base):
    def forward(self, x: Tensor) -> Tensor:
        kinds = x.unique()  # type: ignore[no-untyped-call, unused-ignore]
        return self.fc(self.lstm(self.emb(x))[0][:, -1]) * (1 if len(kinds) < 99 else 2)


class Branching(Base):
    def forward(self, x: Tensor) -> Tensor:
        out = self.lstm(self.emb(x))[0][:, -1]
        if out.sum() > 0:
            out = -out
        return self.fc(out)


class Normalized(Base):
    """A norm between two recurrent modules."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(5)
        self.second = nn.LSTM(5, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.lstm(self.emb(x))
        return self.fc(self.second(self.norm(out))[0][:, -1])


class Positions(Base):
    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(1, 64, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(self.emb(x) + self.places[:, : x.shape[1]])[0][:, -1])


class PositionTable(Base):
    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.emb(x) + self.places(torch.arange(x.shape[1]))
        return self.fc(self.lstm(rows)[0][:, -1])


class BagOfWords(Base):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(WORDS, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(self.emb(x) + self.bag(x)[:, None])[0][:, -1])


class HashedIds(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(self.emb(x) + self.emb(x % 7))[0][:, -1])


class SumOfInputs(Base):
    def forward(self, x: Tensor, kinds: Tensor) -> Tensor:
        return self.fc(self.lstm(self.emb(x) + self.emb(kinds))[0][:, -1])


class SoftmaxOfRows(Base):
    def forward(self, x: Tensor) -> Tensor:
        rows = self.emb(x) + self.emb(x).softmax(-1)
        return self.fc(self.lstm(rows)[0][:, -1])


class SelfAttention(Base):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(5, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.lstm(self.emb(x))
        return self.fc(self.attention(out, out, out)[0][:, -1])


class Convolution(nn.Module):
    """A convolution over neighbouring steps of the features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(FEATURES, 6, 3, padding=1)
        self.gru = nn.GRU(6, 5, batch_first=True)
        self.fc = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.gru(self.conv(x.transpose(1, 2)).transpose(1, 2))[0][:, -1])


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.pow(3)


class OwnFunction(Base):
    def forward(self, x: Tensor) -> Tensor:
        last = self.lstm(self.emb(x))[0][:, -1]
        return self.fc(Cubed.apply(last))  # type: ignore[no-untyped-call]


class Unseen(Base):
    """A kernel that is called below torch's functions."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.lstm(self.emb(x))[0][:, -1]
        with torch._C.DisableTorchFunction():
            out = out.sin()
        return self.fc(out)


class Changed(Base):
    """Outputs that are changed in place."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.lstm(self.emb(x))[0]
        out[:, -1] = 0
        return self.fc(out[:, -1])


class Aliased(Base):
    """A view, whose tensor is changed in place before it is read."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.lstm(self.emb(x))[0]
        last = out[:, -1]
        out.mul_(2.0)
        return self.fc(last)


class Windows(nn.Module):
    """Kim's network, whose state dict can be imported."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.fc = nn.Embedding(WORDS, 6), nn.Linear(4, CLASSES)
        self.conv = nn.Conv1d(6, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.conv(self.emb(x).transpose(1, 2))).amax(2))


class NoRecurrence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.fc = nn.Embedding(WORDS, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.emb(x).mean(1))


class Cells(nn.Module):
    """A loop over the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.cell = nn.Embedding(WORDS, 6), nn.LSTMCell(6, 5)
        self.fc = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for row in self.emb(x).unbind(1):
            state = self.cell(row, state)
        assert state is not None
        return self.fc(state[0])


class TwoPoolings(Base):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(10, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.lstm(self.emb(x))
        weighted = (out * torch.softmax(out.sum(2, keepdim=True), 1)).sum(1)
        return self.fc(torch.cat([weighted, out.amax(1)], 1))


class TwoFunctions(TwoPoolings):
    """Poolings that pass through different functions before they are joined."""

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.lstm(self.emb(x))
        return self.fc(torch.cat([torch.tanh(out.mean(1)), out.amax(1)], 1))


class TwoReaders(TwoPoolings):
    """Poolings of the outputs of two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.LSTM(5, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        first, _ = self.lstm(self.emb(x))
        return self.fc(torch.cat([first.mean(1), self.second(first)[0].amax(1)], 1))


class OwnPaths(Base):
    """The best path of labels, as a list, from scores of labels and of transitions."""

    def __init__(self) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.randn(CLASSES, CLASSES))

    def forward(self, x: Tensor) -> list[list[int]]:
        emissions = self.fc(self.lstm(self.emb(x))[0])
        score = emissions[:, 0]
        for t in range(1, x.shape[1]):
            score = (score.unsqueeze(2) + self.transitions).amax(1) + emissions[:, t]
        return score.argmax(1, keepdim=True).tolist()


@dataclass(frozen=True)
class Refusal:
    """What a message says, and the text of the line that it names (None: no line)."""

    build: Callable[[], nn.Module]
    says: str
    line: str | None
    task: str = "classify"
    options: dict[str, Any] = field(default_factory=dict)


REFUSALS = {
    "a CRF with a mask": Refusal(
        lambda: CRFTagger(masked=True), "CRF.decode has a mask", "mask=x != 0", "tag"
    ),
    "a CRF of another task": Refusal(CRFTagger, "returns a row for every step", None),
    "a reversed input": Refusal(Reversed, "torch.Tensor.flip", "x.flip(1)"),
    "the first step": Refusal(First, "reads the first step's output", "[:, 0]"),
    "the step before the last": Refusal(Middle, "reads step -2", "[:, -2]"),
    "padding": Refusal(PaddedMean, "reads 50 steps, not the steps", "F.pad("),
    "a mask": Refusal(MaskedMean, "torch.Tensor.ne", "x != 0"),
    "a sum over the steps": Refusal(Summed, "divide the sum by their number", ".sum(1))"),
    "a sum over a fixed length": Refusal(HalvedSum, "divide the sum by their number", "/ 7"),
    "a mean of activations": Refusal(MeanOfTanh, "takes the mean", ".mean(1)"),
    "a maximum of activations": Refusal(MaxOfGelu, "takes the max", ".amax(1)"),
    "a loop after the scores": Refusal(Watched, "a loop over the steps", "self.watched ="),
    "teacher forcing": Refusal(TeacherForced, "a loop over the steps", "out"),
    "a function of the user's own": Refusal(Sine, "torch.sin cannot be served", "torch.sin("),
    "two inputs": Refusal(TwoInputs, "needs 2 inputs (x, lengths)", None),
    "an embedding with a largest norm": Refusal(MaxNorm, "max_norm", "self.emb(x)"),
    "dropout in evaluation": Refusal(Dropped, "training=self.training", "F.dropout("),
    "a packed sequence": Refusal(PackedSteps, "packed sequence", "self.lstm(packed)"),
    "a learned start state": Refusal(LearnedStart, "a state that is not zero", "start)[0]"),
    "a norm by the batch": Refusal(BatchStatistics, "by the batch itself", "self.norm("),
    "a branch on numbers": Refusal(Branching, "to Python", "out.sum() > 0"),
    "numbers that numpy reads": Refusal(ReadByNumpy, "to Python", "from_dlpack"),
    "numbers of a storage": Refusal(ReadAsStorage, "to Python", "untyped_storage"),
    "a number of kinds": Refusal(Counting, "to Python", "x.unique()"),
    "a norm between two modules": Refusal(Normalized, "layers between them", "self.second("),
    "positions": Refusal(Positions, "torch.Tensor.add", "self.places"),
    "a table of positions": Refusal(PositionTable, "such as those of positions", "torch.arange("),
    "a bag of words": Refusal(BagOfWords, "functional.embedding_bag", "self.bag(x)"),
    "hashed ids": Refusal(HashedIds, "torch.Tensor.remainder", "x % 7"),
    "a sum over two inputs": Refusal(SumOfInputs, "needs 2 inputs (x, kinds)", None),
    "a softmax of an embedding": Refusal(SoftmaxOfRows, "follows a softmax", ".softmax(-1)"),
    "self-attention": Refusal(SelfAttention, "multi_head_attention", "self.attention("),
    "a convolution": Refusal(Convolution, "mixes neighbouring steps", "self.conv("),
    "a function of autograd": Refusal(OwnFunction, "torch.Tensor.pow", "x.pow(3)"),
    "a kernel outside torch's functions": Refusal(Unseen, "outside torch's own", "self.fc(out)"),
    "an assignment to outputs": Refusal(Changed, "torch.Tensor.__setitem__", "out[:, -1] = 0"),
    "a view of changed outputs": Refusal(Aliased, "answers differ", None),
    "no recurrent module": Refusal(NoRecurrence, "no recurrent module", None),
    "convolutions alone": Refusal(Windows, "import the state dict with `sruserve import`", None),
    "cells in a loop": Refusal(Cells, "a loop over the steps", "for row in"),
    "attention beside a maximum": Refusal(TwoPoolings, "joins the attention", "torch.cat("),
    "functions of poolings": Refusal(TwoFunctions, "joins branches", "torch.cat("),
    "poolings of two modules": Refusal(TwoReaders, "another module's steps", "torch.cat("),
    "a search of the user's own": Refusal(
        OwnPaths, "a loop over the steps", "self.transitions", "tag"
    ),
}
