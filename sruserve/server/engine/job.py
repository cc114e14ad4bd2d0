"""One admitted request: the value that the HTTP edge submits to an engine."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sruserve.server.engine.decoding_parameters import BeamSearch, Sampling
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Result
from sruserve.server.engine.sequence_input import PackedInputs, SequenceInput
from sruserve.server.engine.snapshot import Row, StateOutput

Added = tuple[NDArray[np.int64], Row]
"""Token ids, and what is added to their scores."""

_NONE = np.zeros(0, np.int64)
_USUAL_SAMPLING = Sampling()


@dataclass(slots=True, eq=False)
class Job:
    """One admitted request. Its items are computed together; its outcome is delivered exactly once.

    `deliver` runs on `loop` with (index of the item, result): once per item, for GENERATE several
    times; or `deliver_all`, if there is one, with the results of all items, if the engine has
    computed them together: the steps of these are all inputs. `done` resolves after the last
    delivery, or with the error.
    Cancelling `done` withdraws the job: deliveries stop, and its rows are freed.

    state_output: whether results carry a Snapshot, and of which kind.
    stream: a GENERATE job delivers its text in chunks; otherwise once, at the end.
    n_best: the most spans that an ANSWER job returns for each input.
    search: of a TRANSLATE job.
    raw_scores: a CLASSIFY or COMPARE job returns the network's own scores, before the activation.
    input_bytes: bytes of the input that count against the queue's limit.
    submitted: when, on the engine's clock. begun: the time of its first step; 0: none yet.
    deadline: the time after which a job that has not begun is dropped; 0 is never.
    amounts: what it counts for in the admission queue; empty before that.
    inputs: number of inputs of all items. steps: the same, but an item without inputs counts as 1.
    added: what its biases and allowed tokens add to scores; None until a step has needed it.
    tenant: the owner; tenants get equal shares of each step. None: no owner; all such jobs
        count as one tenant.
    priority: a tenant's waiting jobs with the smallest number get most of its share.
    continues: the job continues the work of an `Engine.continuing` block, also during a drain.
    queues: the job counts in the admission queue. False: it is a step of work that was admitted.
    alone: nothing else waits on `loop`, which submits the job: a short step may run there.
    """

    kind: JobKind
    items: Sequence[SequenceInput]
    loop: asyncio.AbstractEventLoop
    deliver: Callable[[int, Result], None]
    done: asyncio.Future[None]
    deliver_all: Callable[[Sequence[Result]], None] | None = None
    state_output: StateOutput = StateOutput.NONE
    stream: bool = False
    raw_scores: bool = False
    n_best: int = 1
    sampling: Sampling = _USUAL_SAMPLING
    search: BeamSearch | None = None
    input_bytes: int = 0
    deadline: float = 0.0
    tenant: Hashable = None
    priority: int = 0
    continues: bool = False
    queues: bool = True
    alone: bool = False
    submitted: float = 0.0
    begun: float = 0.0
    added: Added | None = None
    amounts: tuple[int, ...] = ()
    inputs: int = field(init=False)
    steps: int = field(init=False)

    def __post_init__(self) -> None:
        if type(self.items) is PackedInputs:
            self.inputs = self.steps = len(self.items.ids.ids)
            return
        self.inputs = self.steps = 0
        for item in self.items:  # `sum` with a generator is slower, and this path is hot
            inputs = len(item.inputs)
            self.inputs += inputs
            self.steps += inputs or 1

    def unpack(self) -> None:
        """Make an object of each item, for sequences that refer to theirs again and again."""
        if type(self.items) is PackedInputs:
            self.items = list(self.items)

    def forget_inputs(self) -> None:
        """Free the inputs and initial states of completions, which may run for long."""
        if self.kind.samples:
            self.items = [replace(item, inputs=_NONE, start=None) for item in self.items]

    @property
    def tokens(self) -> int:
        """Maximum number of tokens to sample."""
        return len(self.items) * self.sampling.max_tokens if self.kind.samples else 0

    @property
    def withdrawn(self) -> bool:
        """Whether the outcome is no longer awaited."""
        return self.done.done()
