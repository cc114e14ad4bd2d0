"""The network's outputs for one sequence, besides sampled tokens."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sruserve.model.heads.paths import Paths
from sruserve.model.reader.spans import Spans
from sruserve.server.engine.results import Logprobs

Floats = NDArray[np.float32]


@dataclass(slots=True)
class SequenceOutputs:
    """The outputs of one step of the engine, or of all of them so far.

    probabilities: (classes), class probabilities after the last step; None before the first.
    logits: (classes), the scores that they are made of, if the job requests them.
    vector: (width), the pooled output after the last step, if the job embeds.
    values: log-probabilities, label probabilities or network outputs: arrays of (steps) or
        (steps, width).
    labels: the most likely label of each step: arrays of (steps), int64.
    logprobs: of each scored token, if the job requests them.
    paths: of a CRF, after the last step.
    spans: the best spans of a document; empty before its step, and if scores are not finite.
    """

    probabilities: Floats | None = None
    logits: Floats | None = None
    vector: Floats | None = None
    values: list[Floats] = field(default_factory=list)
    labels: list[NDArray[np.int64]] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    paths: Paths | None = None
    spans: Spans = field(default_factory=list)

    def add(self, new: "SequenceOutputs") -> None:
        """Append the outputs of the next step."""
        if new.probabilities is not None:
            self.probabilities, self.logits = new.probabilities, new.logits
        if new.vector is not None:
            self.vector = new.vector
        if new.paths is not None:
            self.paths = new.paths
        self.values += new.values
        self.spans += new.spans
        self.labels += new.labels
        self.logprobs += new.logprobs
