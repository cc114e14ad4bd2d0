"""Answer whole jobs in one step when nothing else waits: no text is scheduled, no state kept."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray

from sruserve.kernels import RaggedBatch
from sruserve.model.folder import Model
from sruserve.server.engine.admission_queue import AdmissionQueue
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.metrics import Metrics
from sruserve.server.engine.output_reader import OutputReader
from sruserve.server.engine.result_dispatcher import ResultDispatcher
from sruserve.server.engine.results import Classified, ClassifiedRows
from sruserve.server.engine.scheduling.job_turns import JobTurns, may_take_turns
from sruserve.server.engine.scheduling.scheduler import MIN_INPUT_ROWS, Scheduler
from sruserve.server.engine.sequence_input import PackedInputs
from sruserve.server.engine.sequence_results import not_finite
from sruserve.server.engine.snapshot import StateOutput
from sruserve.server.engine.state_cache.cache import CachedState
from sruserve.server.engine.threads import ThreadPolicy

Inputs = NDArray[np.int64] | NDArray[np.float32]

# With several owners, a step must be short for each of them.
_SHARED_ROWS = 128


class OneStep:
    """Classifies whole inputs that begin from zeros and whose end states nobody asks for.

    The scheduler would do the same in its next steps. All other jobs are left to it, and so is a
    step that fails: it finds out whose fault that is.
    """

    def __init__(
        self,
        model: Model,
        states: torch.Tensor,
        threads: ThreadPolicy,
        admission_queue: AdmissionQueue,
        dispatcher: ResultDispatcher,
        metrics: Metrics,
        clock: Callable[[], float],
        config: EngineConfig,
        scheduler: Scheduler,
    ) -> None:
        self._clock, self._config, self._scheduler = clock, config, scheduler
        self._sure_rows = min(MIN_INPUT_ROWS, config.max_batch_tokens, _SHARED_ROWS)
        self._network, self._states, self._threads = model.network, states, threads
        self._output_reader = OutputReader(model)
        self._admission_queue, self._dispatcher = admission_queue, dispatcher
        self._metrics, self._turns = metrics, JobTurns()

    def max_rows(self, alone: bool) -> int:
        """The most rows of a step; alone: nobody else waits for its end."""
        return self._config.max_batch_tokens if alone else self._scheduler.max_input_rows

    def answer(
        self, messages: Sequence[Job | CachedState], alone: bool
    ) -> tuple[int, Sequence[Job]]:
        """Answer the jobs of one step of up to `max_rows` rows; return its rows, and other jobs.

        The rows are 0 if the scheduler must have all messages. If this raises, no job is answered,
        and all still wait.
        """
        started = self._clock()
        if not _are_plain(messages, started):
            return 0, ()
        jobs, left = self._choose(messages, alone)
        inputs, lengths = _inputs_of(jobs)
        if not lengths or not min(lengths) or max(lengths) > self._network.piece_rows:
            return 0, ()
        rows = sum(lengths)
        self._begin(jobs, started)
        probabilities = self._classify(inputs, lengths, rows)
        self._metrics.step(len(lengths), rows, self._clock() - started)
        self._metrics.consumed(rows)
        self._admission_queue.mark_consumed(*jobs)
        self._deliver(jobs, probabilities)
        return rows, left

    def _choose(self, jobs: Sequence[Job], alone: bool) -> tuple[Sequence[Job], Sequence[Job]]:
        """The jobs of the next step, and those that are left; none if they cannot take turns."""
        rows, owner, is_shared = 0, None, False
        for job in jobs:
            if rows and job.tenant != owner:
                is_shared = True
            owner, rows = job.tenant, rows + job.inputs
        if rows <= self._sure_rows:
            return jobs, ()
        max_rows = self.max_rows(alone)
        if is_shared:
            max_rows = min(max_rows, _SHARED_ROWS)
        if rows <= max_rows:
            return jobs, ()
        return self._turns.choose(jobs, max_rows) if may_take_turns(jobs, max_rows) else ((), ())

    def _begin(self, jobs: Sequence[Job], started: float) -> None:
        """Record how long jobs have waited for their step."""
        waits: list[float] = []
        for job in jobs:
            job.begun = started
            waits.append(started - job.submitted)
        self._metrics.queued(waits)

    def _deliver(self, jobs: Sequence[Job], probabilities: NDArray[np.float32]) -> None:
        """Deliver the results of jobs, which no longer wait: (inputs of all jobs, classes)."""
        is_finite = not _has_nan(probabilities)  # once for all jobs: each call takes 2 µs
        first = 0
        for job in jobs:
            end = first + len(job.items)
            # A view would keep the whole step's in memory for as long as one client takes.
            own = probabilities[first:end].copy()
            first = end
            if not is_finite and _has_nan(own):
                self._dispatcher.add_error(job, not_finite())
                continue
            if type(job.items) is PackedInputs:
                self._dispatcher.add_results(job, ClassifiedRows(own, job.items.ids.lengths))
                continue
            results: list[Classified] = []
            for item, of_item in zip(job.items, own, strict=True):
                results.append(Classified(of_item, len(item.inputs), None))
            self._dispatcher.add_results(job, results)

    def _classify(self, inputs: list[Inputs], lengths: list[int], rows: int) -> NDArray[np.float32]:
        """The class probabilities of whole inputs of these lengths, (inputs, classes)."""
        self._threads.apply(rows)
        packed: Any = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
        self._dispatcher.flush()
        return self._in_parts(packed, np.array([0, *accumulate(lengths)]), rows, max(lengths))

    def _in_parts(
        self, packed: Inputs, offsets: NDArray[np.int64], rows: int, longest: int
    ) -> NDArray[np.float32]:
        """Compute the classes in parts that the network computes at once: else it splits inputs.

        A part may be computed in smaller ones than all inputs, because it has fewer rows.
        """
        max_rows = self._network.rows_at_once(rows, longest)
        if rows <= max_rows:
            return self._run(packed, offsets)
        results: list[NDArray[np.float32]] = []
        for first, last in _parts(offsets, max_rows):
            begin, end = int(offsets[first]), int(offsets[last])
            of_part = offsets[first : last + 1] - begin
            longest = int((of_part[1:] - of_part[:-1]).max())
            results.append(self._in_parts(packed[begin:end], of_part, end - begin, longest))
        return np.concatenate(results)

    def _run(self, packed: Inputs, offsets: NDArray[np.int64]) -> NDArray[np.float32]:
        nowhere = torch.full((len(offsets) - 1,), -1)
        batch = RaggedBatch(torch.from_numpy(offsets), self._states, nowhere, nowhere)
        last_rows = torch.from_numpy(offsets[1:] - 1)
        hidden = self._network.hidden(torch.from_numpy(packed), batch, last_rows)
        return self._output_reader.classes(hidden)


def _are_plain(messages: Sequence[Job | CachedState], now: float) -> TypeGuard[Sequence[Job]]:
    """Whether all are jobs of which somebody awaits the classes, and nothing else."""
    for job in messages:
        if (
            not isinstance(job, Job)
            or job.kind is not JobKind.CLASSIFY
            or job.state_output is not StateOutput.NONE
            or job.raw_scores
            or job.done.done()
            or 0 < job.deadline < now
        ):
            return False
    return True


def _inputs_of(jobs: Sequence[Job]) -> tuple[list[Inputs], list[int]]:
    """The inputs of jobs, and the length of each input; none if one of them continues a state."""
    inputs: list[Inputs] = []
    lengths: list[int] = []
    for job in jobs:
        if type(job.items) is PackedInputs:
            inputs.append(job.items.ids.ids)
            lengths += job.items.ids.lengths
            continue
        for item in job.items:
            if item.start is not None:
                return [], []
            inputs.append(item.inputs)
            lengths.append(len(item.inputs))
    return inputs, lengths


def _has_nan(values: NDArray[np.float32]) -> bool:
    return bool(np.logical_or.reduce(np.isnan(values), axis=None))  # `any` is a function of Python


def _parts(offsets: NDArray[np.int64], max_rows: int) -> Iterator[tuple[int, int]]:
    """The first input and the end of parts of up to `max_rows` rows; no input is split."""
    first, inputs = 0, len(offsets) - 1
    while first < inputs:
        end = int(offsets.searchsorted(offsets[first] + max_rows, "right")) - 1
        yield first, end
        first = end
