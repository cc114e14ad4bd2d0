"""The results of jobs, one type for each kind of work."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sruserve.model.reader.spans import Spans
from sruserve.server.engine.partial_translation import PartialTranslation
from sruserve.server.engine.snapshot import Row, Snapshot


@dataclass(slots=True)  # not frozen: see `SequenceInput`
class Classified:
    """Probabilities (classes), float32, after the stream's last step; None if there is none yet.

    For a job with `raw_scores`: the logits; None if this job had no step.
    """

    probabilities: NDArray[np.float32] | None
    steps: int
    state: Snapshot | None


class ClassifiedRows(Sequence[Classified]):
    """The results of `PackedInputs`; none has a state.

    probabilities: (inputs, classes), float32. lengths: the steps of each input.
    """

    __slots__ = ("lengths", "probabilities")

    def __init__(self, probabilities: NDArray[np.float32], lengths: Sequence[int]) -> None:
        self.probabilities, self.lengths = probabilities, lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Any) -> Any:
        return Classified(self.probabilities[index], self.lengths[index], None)


@dataclass(frozen=True, slots=True)
class Tagged:
    """The likeliest label of each step, (steps), int64, and its probability, (steps), float32.

    With a CRF, these are the steps whose labels have become final.

    before: the label of the step before these; None: there was none.
    pending: with a CRF, the number of steps after these, whose labels are open.
    """

    labels: NDArray[np.int64]
    scores: NDArray[np.float32]
    before: int | None
    steps: int
    state: Snapshot | None
    pending: int | None = None


@dataclass(frozen=True, slots=True)
class Regressed:
    """Values, (outputs), float32, after the stream's last step; None if there is none yet.

    every: (steps, outputs): the values after each step (REGRESS_STEPS).
    ahead: (steps ahead, outputs): the values after steps whose inputs were fed back.
    """

    values: Row | None
    steps: int
    state: Snapshot | None
    every: Row | None = None
    ahead: Row | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """The best spans of a document, as `best_spans` returns them."""

    spans: Spans
    steps: int
    state: Snapshot | None


@dataclass(frozen=True, slots=True)
class Encoded:
    """The network's output of each step, (steps, width), float32."""

    outputs: NDArray[np.float32]
    steps: int
    state: Snapshot | None


@dataclass(frozen=True, slots=True)
class Embedded:
    """The pooled output of the last step, (width), float32; None if the job had no step."""

    vector: Row | None
    steps: int
    state: Snapshot | None


@dataclass(frozen=True, slots=True)
class Logprobs:
    """A token's text, its log-probability, and the most likely tokens with theirs."""

    token: str
    logprob: float
    top: dict[str, float]


@dataclass(frozen=True, slots=True)
class Scored:
    """The log-likelihood, in nats, of the `tokens` tokens that follow another token.

    logprobs: of each of these tokens, if the job's sampling asks for them.
    """

    log_likelihood: float
    tokens: int
    characters: int
    steps: int
    state: Snapshot | None
    logprobs: Sequence[Logprobs] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """The reason why a completion ends, as its last result reports it."""

    finish_reason: str
    stop_reason: str | None = None


LENGTH = Finish("length")
COMPLETE = Finish("stop")  # the text matches its constraint, and no token can follow
DRAINING = Finish("length", "draining")


@dataclass(frozen=True, slots=True)
class Generated:
    """A chunk of one completion; the last one has a `finish_reason`, and the state if requested.

    A state without `finish_reason` is an intermediate one: the state at the end of the chunk.
    """

    text: str
    tokens: Sequence[int]
    logprobs: Sequence[Logprobs] = ()
    finish_reason: str | None = None
    stop_reason: str | None = None
    state: Snapshot | None = None


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation.

    tokens: (tokens), int64, without the end. log_probability: of all of them and the end, in nats.
    score: what translations of a source are ranked by.
    finish_reason: `stop` or `length`; None: it continues with more of its source.
    attention: (tokens, source length), float32, if it is wanted and the model has it.
    """

    tokens: NDArray[np.int64]
    log_probability: float
    score: float
    finish_reason: str | None
    attention: Row | None = None


@dataclass(frozen=True, slots=True)
class Translated:
    """The translations of one source, the best one first; or a chunk of a streamed one.

    tokens: of a streamed translation, those that were not sent before.
    steps: tokens of the source, and steps of all hypotheses.
    partial: what continues a translation whose source continues.
    """

    hypotheses: Sequence[Hypothesis]
    tokens: Sequence[int]
    steps: int
    partial: PartialTranslation | None = None
    state: None = None


Result = (
    Translated
    | Classified
    | Tagged
    | Regressed
    | Answered
    | Encoded
    | Embedded
    | Scored
    | Generated
)
