"""What a step's outputs say: classes, labels, log-probabilities, or the outputs themselves."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from sruserve.kernels.devices import send
from sruserve.model import softmaxes
from sruserve.model.folder import Model
from sruserve.model.softmaxes import over_words
from sruserve.model.text import token_text
from sruserve.server.engine.found import Floats, Found
from sruserve.server.engine.jobs import Kind, Logprobs
from sruserve.server.engine.pool import indices
from sruserve.server.engine.streams import Stream


@dataclass(slots=True)
class Advance:
    """What a step did for one stream; not true of the stream until it is settled.

    row: the fresh state row. consumed: inputs taken, or 1 in a decode.
    """

    stream: Stream
    row: int
    consumed: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    found: Found = field(default_factory=Found)


Read = tuple[Advance, slice]  # an advance, and the outputs that are its own


class Readout:
    """Reads the outputs of one model."""

    def __init__(self, model: Model) -> None:
        self._network, self._codec = model.network, model.codec
        self._outputs = model.config.outputs or 0

    def read(self, reads: Sequence[Read], hidden: Tensor) -> None:
        """Take down what the rows of `hidden`, (rows, width), say to each advance's kind of job."""
        of_kind: dict[Kind, list[Read]] = {}
        for read in reads:
            of_kind.setdefault(read[0].stream.job.kind, []).append(read)
        for kind, some in of_kind.items():
            match kind:
                case Kind.CLASSIFY:
                    self._classify(some, hidden)
                case Kind.COMPARE:
                    self._compare(some, hidden)
                case Kind.TAG:
                    self._tag(some, hidden)
                case Kind.ENCODE:
                    outputs = _numpy(hidden)
                    for advance, rows in some:
                        advance.found.values.append(outputs[rows].copy())
                case Kind.SCORE:
                    for advance, rows in some:
                        self._score(advance, hidden[rows])

    def logprobs(self, logits: Tensor, token: int, top: int) -> Logprobs:
        """What is told of a token that was picked by these scores, (outputs)."""
        scores = self._network.log_probs(logits.unsqueeze(0))
        return self._told(scores, torch.tensor([[token]], device=scores.device), top)[0]

    def _classify(self, reads: Sequence[Read], hidden: Tensor) -> None:
        probabilities = self._probabilities(self._network.logits(hidden))
        for advance, rows in reads:  # a view would keep the whole step's as long as the stream
            advance.found.answer = probabilities[rows.stop - 1].copy()

    def _compare(self, reads: Sequence[Read], hidden: Tensor) -> None:
        """Outputs of pairs: every step of both sequences of each."""
        lengths = [steps for advance, _ in reads for steps in advance.stream.parts]
        probabilities = self._probabilities(self._network.compare(hidden, lengths))
        for (advance, _), answer in zip(reads, probabilities, strict=True):
            advance.found.answer = answer

    def _tag(self, reads: Sequence[Read], hidden: Tensor) -> None:
        """The likeliest label of each step, with its probability, and all of the last step."""
        labels = np.empty(len(hidden), np.int64)
        values = np.empty(len(hidden), np.float32)
        for start, end in self._blocks(len(hidden)):
            probabilities = self._probabilities(self._network.logits(hidden[start:end]))
            labels[start:end] = probabilities.argmax(1)
            values[start:end] = probabilities.max(1)
        last = hidden.index_select(0, indices([rows.stop - 1 for _, rows in reads], hidden.device))
        answers = self._probabilities(self._network.logits(last))
        for (advance, rows), answer in zip(reads, answers, strict=True):
            found = Found(answer.copy(), [values[rows].copy()], [labels[rows].copy()])
            advance.found = found

    def _score(self, advance: Advance, hidden: Tensor) -> None:
        """The log-probabilities of the tokens that follow the rows of `hidden`."""
        stream = advance.stream
        following = stream.known[stream.done + 1 : stream.done + 1 + advance.consumed]
        targets = send(torch.from_numpy(following), hidden.device).unsqueeze(1)
        for start, end in self._blocks(len(hidden)):
            scores = self._network.log_probs(self._network.logits(hidden[start:end]))
            advance.found.values.append(_numpy(scores.gather(1, targets[start:end]).squeeze(1)))
            if (top := stream.job.sampling.logprobs) is not None:
                advance.found.logprobs += self._told(scores, targets[start:end], top)

    def _told(self, scores: Tensor, tokens: Tensor, top: int) -> list[Logprobs]:
        """What is told of (rows, 1) tokens by their log-probabilities, (rows, outputs)."""
        found = scores.gather(1, tokens).squeeze(1).tolist()
        values, ids = scores.topk(min(top, scores.shape[1]))
        told = zip(tokens.squeeze(1).tolist(), found, ids.tolist(), values.tolist(), strict=True)
        text = partial(token_text, self._codec)
        return [
            Logprobs(text(token), value, dict(zip(map(text, most), their, strict=True)))
            for token, value, most, their in told
        ]

    def _blocks(self, rows: int) -> Iterator[tuple[int, int]]:
        """Runs of rows whose scores fit into one block."""
        size = max(1, softmaxes.LOGITS // self._outputs)
        for start in range(0, rows, size):
            yield start, min(start + size, rows)

    def _probabilities(self, scores: Tensor) -> Floats:
        return _numpy(over_words(torch.softmax, scores))


def _numpy(values: Tensor) -> Floats:
    """A tensor's values, float32, in host memory."""
    found: Floats = values.float().cpu().numpy()
    return found
