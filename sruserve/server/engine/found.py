"""What steps read out of a network for one stream, besides tokens that were sampled."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sruserve.server.engine.jobs import Logprobs

Floats = NDArray[np.float32]


@dataclass(slots=True)
class Found:
    """The findings of one step, or of all steps so far.

    answer: (classes), class probabilities after the last step; None before the first.
    values: for each step a log-probability, a label's probability, or outputs: parts of (steps) or
        (steps, width).
    labels: the likeliest label of each step: parts of (steps), int64.
    logprobs: of each token that was scored, if they were asked for.
    """

    answer: Floats | None = None
    values: list[Floats] = field(default_factory=list)
    labels: list[NDArray[np.int64]] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)

    def add(self, later: "Found") -> None:
        """Take in what the next step found."""
        if later.answer is not None:
            self.answer = later.answer
        self.values += later.values
        self.labels += later.labels
        self.logprobs += later.logprobs
