"""One model's engine: a thread that schedules, steps and settles until it is stopped."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from sruserve.kernels.oom import release_cached
from sruserve.model.folder import Model
from sruserve.server.engine.batch import Batch
from sruserve.server.engine.burst_pipeline import BurstPipeline
from sruserve.server.engine.checkpoints import IntermediateStates
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.engine.metrics import Metrics
from sruserve.server.engine.model_runner import ModelRunner
from sruserve.server.engine.one_step import OneStep
from sruserve.server.engine.output_reader import StepResult
from sruserve.server.engine.pending import FinishQueue
from sruserve.server.engine.results import DRAINING
from sruserve.server.engine.scheduling.scheduler import Scheduler
from sruserve.server.engine.sequence import ActiveSequence
from sruserve.server.engine.sequence_input import PackedInputs, SequenceInput
from sruserve.server.engine.settle import Settler
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.engine.state_cache.cache import CachedState
from sruserve.server.engine.state_cache.copy_stream import CopyStream, copy_stream_for
from sruserve.server.engine.state_manager import StateManager
from sruserve.server.engine.threads import ThreadPolicy
from sruserve.server.errors import (
    Draining,
    EmptyInput,
    InputTooLong,
    InvalidRequest,
    OutOfDeviceMemory,
    ServeError,
    StateTooLarge,
    StateWrongModel,
    faults,
)

_log = logging.getLogger(__name__)
_BURSTS = (16, 64)  # steps on a CPU, where a request may end a burst, and on a GPU
_BURST_SECONDS = 0.0125  # of a burst on a GPU: a new request waits for up to two
_TURN_SECONDS = 0.005  # of a burst on a CPU while other decoding sequences wait for their turn
_STEPS_BESIDE = 4  # of a burst on a GPU, in the time that the host launches the kernels of a step


class Engine(JobEngine):
    """Serves jobs on one model: submit → schedule → step → settle.

    alone: whether one caller has the engine for itself, so that nobody waits for a step to end.
    short_seconds: what a step may take on an event loop; to wake the engine's thread, and then the
        loop, takes half.
    """

    alone = False
    short_seconds = 0.5e-3

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        metrics: Metrics,
        copy_stream: CopyStream | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        network = model.network
        super().__init__(model.name, network.device, config, metrics, clock)
        self.model = model
        row_bytes = max(1, network.layout.nbytes)
        if config.state_pool_bytes < 2 * row_bytes:
            raise StateTooLarge(
                f"a state of {model.name} takes {row_bytes} bytes and a step needs two: raise "
                f"state_pool_bytes above {2 * row_bytes}"
            )
        self._states = StateManager(
            network.layout, config, network.device, copy_stream or copy_stream_for(network.device)
        )
        self._scheduler = Scheduler(
            config,
            self._admission_queue,
            self._states,
            not network.supports_streaming,
            model.codec,
            network.crf,
            model.config.outputs or 0,
            network.device.type == "cuda",
            self._end_job,
            clock,
        )
        self._runner = ModelRunner(model, self._states.pool, config.max_block_scores)
        self._settler = Settler(
            config, self._scheduler, self._runner, self._states, FinishQueue(self._states),
            IntermediateStates(self._states), self._dispatcher, metrics,
        )  # fmt: skip
        self._bursts = BurstPipeline(
            self._scheduler, self._runner, self._settler, self._states, metrics, clock
        )
        self._threads = ThreadPolicy(network.weights, network.dtype, config.threads)
        self._one_step = OneStep(
            model, self._states.pool.rows, self._threads, self._admission_queue,
            self._dispatcher, metrics, clock, config, self._scheduler,
        )  # fmt: skip
        self._on_gpu = network.device.type == "cuda"
        self._burst = config.burst or _BURSTS[self._on_gpu]
        self._tier = "device" if self._on_gpu else "pool"
        self._has_news, self._next_report = False, 0.0
        self._inference_mode = torch.inference_mode()  # of event loops that have the turn
        self._polls = False  # the thread wakes from its wait to report news

    @property
    def running(self) -> int:
        return self._scheduler.running

    @property
    def step_rows(self) -> int:
        """Inputs that one step of whole inputs takes."""
        return self._one_step.max_rows(self.alone)

    @property
    def rows(self) -> int:
        """State rows in use on the device."""
        return len(self._states.pool)

    @property
    def state_limits(self) -> dict[str, int]:
        limits = {self._tier: self._states.pool.capacity * self._states.pool.row_bytes}
        if self._config.state_host_bytes:
            limits["host"] = self._config.state_host_bytes
        return limits

    @property
    def max_cached_states(self) -> int:
        """States that can be cached at a time; 1/64 is left for states in transfer."""
        capacity = self._states.cache.capacity
        return capacity - capacity // 64

    def check_steps(self, steps: int) -> None:
        """Raise `InputTooLong` if the model reads whole inputs, and one has too many steps."""
        if self.model.network.supports_streaming or steps <= self._config.max_batch_tokens:
            return
        raise InputTooLong(
            f"{self.model.name} reads whole inputs, because "
            f"{self.model.network.not_streamable_because}: "
            f"send at most {self._config.max_batch_tokens} steps "
            f"(SRUSERVE_MAX_BATCH_TOKENS); this input has {steps}"
        )

    def _check(self, job: Job) -> None:
        packed = job.items.ids.lengths if type(job.items) is PackedInputs else None
        if job.inputs > self._config.max_batch_tokens:
            self.check_steps(max(packed or (len(item.inputs) for item in job.items)))
        if packed is not None:
            return
        if job.kind.samples and not all(map(_has_last_token, job.items)):
            raise EmptyInput("nothing to continue: send a prompt, or a state that has one")
        if job.sampling.allowed or job.sampling.logit_bias:
            self._check_tokens(job.sampling)
        for item in job.items:
            if item.start is not None and not self._can_read(item.start):
                raise StateWrongModel("the state is cached by another engine; send it to that one")

    def drop(self, cached: CachedState) -> None:
        """Free a cached state after the jobs submitted so far have used it. From any thread."""
        if cached.owner is not self._states.cache:
            return
        if not self._borrow_turn():
            self._admission_queue.drop(cached)
            return
        try:
            self._states.cache.free(cached)
            self._report_occupancy()
        finally:
            self._return_turn()

    def _check_tokens(self, sampling: Sampling) -> None:
        """Raise `InvalidRequest` for unknown tokens, or a token list beside a constraint."""
        outputs = self.model.config.outputs or 0
        tokens = [*sampling.allowed, *(token for token, _ in sampling.logit_bias)]
        if any(not 0 <= token < outputs for token in tokens):
            raise InvalidRequest(
                f"{self.model.name} has only the tokens 0 to {outputs - 1}: leave out others"
            )
        if sampling.allowed and sampling.constraint is not None:
            raise InvalidRequest(
                "tokens may be limited by a constraint or by a list, not by both: "
                "leave one of them out"
            )

    def _can_read(self, start: Snapshot) -> bool:
        """Whether the job carries the state itself, or this engine caches it."""
        return not isinstance(start.row, CachedState) or start.row.owner is self._states.cache

    def _warm_up(self) -> None:
        self.model.network.warm_up(self._threads.apply)
        max_sequences = min(self._config.max_batch_tokens, self._states.max_admitted)
        self._runner.warm_up(max_sequences, self._burst)
        self._report_occupancy()

    def _discard(self) -> None:
        self._bursts.discard()

    def _close(self) -> None:
        self._states.transfers.synchronize()

    def _delivers_later(self) -> bool:
        """Whether results wait until the next step computes, which has no need of Python's lock.

        Before that, their handlers would take the lock from this thread for a millisecond.
        """
        return self.alone and not self._admission_queue.empty

    def _has_jobs(self) -> bool:
        return self._scheduler.busy

    def _jobs(self) -> Iterable[Job]:
        return self._scheduler.jobs()

    def _run_once(self) -> None:
        """Run one scheduling step. After the drain deadline, end all jobs instead."""
        if self._bursts.running and (self._clock() >= self._deadline or self._scheduler.idle):
            self._settle_bursts()
            self._settler.deliver_finished(self._end)
        if self._clock() >= self._deadline:
            self._finish_all()
            self._end_all(Draining("the server stopped before the request was done; retry"))
            return
        if self._states.transfers.busy:
            self._states.transfers.poll()
            self._settler.deliver_finished(self._end)
            self._report_occupancy()
            self._dispatcher.flush()  # `next_batch` may wait
        if self._scheduler.idle:
            if self._bursts.has_slots:
                self._bursts.forget()
            self._wait_for_jobs()
        else:
            self._step()

    def _step(self) -> None:
        """Run the scheduler's next step, if there is any job."""
        if self._scheduler.idle:
            self._report_occupancy()
            return
        batch = self._scheduler.next_batch()
        if len(batch) or self._bursts.running:
            self._run_bursts_and_step(batch)
            self._settler.deliver_finished(self._end)
            self._states.make_room(self.running)  # before the next step needs it
        self._report_occupancy()

    def _wait_for_jobs(self) -> None:
        """Wait for a first job. Meanwhile, an event loop may answer short ones itself."""
        self._polls = self._has_news or self._draining
        messages = self._admission_queue.receive(self.report_seconds if self._polls else None)
        if self._answer(messages):
            self._report_occupancy()

    def _answered_here(self, job: Job) -> bool:
        """Answer a job on its event loop if that takes less time than to wake two threads."""
        if (
            not job.kind.quick
            or self._on_gpu
            or job.steps > self._threads.small_rows
            or self._scheduler.input_seconds(job.steps) >= self.short_seconds
            or not self._borrow_turn()
        ):
            return False
        try:
            self._admission_queue.admit(job)
            with self._inference_mode:
                self._take_turn(partial(self._answer, [job]), job.loop)
        finally:
            self._return_turn()
        return True

    def _borrow_turn(self) -> bool:
        """Borrow the turn of the engine's thread; False: the thread has something to do."""
        if not self._admission_queue.borrow_turn():
            return False
        if not self._scheduler.idle:
            self._admission_queue.return_turn()
            return False
        return True

    def _return_turn(self) -> None:
        """Give the turn back. The thread wakes if there is more to do, or to report."""
        if (self._has_news and not self._polls) or not self._scheduler.idle:
            self._polls = True
            self._admission_queue.wake()
        self._admission_queue.return_turn()

    def _answer(self, messages: Sequence[Job | CachedState]) -> bool:
        """Answer jobs in one step, and return whether.

        Else the scheduler takes all that arrived, and its next step.
        """
        started, rows = self._clock(), 0
        left: Sequence[Job] = ()
        try:
            rows, left = self._one_step.answer(messages, self.alone)
        except faults() as error:  # the scheduler's steps find out whose fault it is
            _log.warning("one step of %s failed, so they are scheduled: %s", self.model.name, error)
        if rows:
            if left:
                self._admission_queue.put_back(left)
            self._scheduler.record_step(rows, 0, rows, self._clock() - started)
        else:
            self._scheduler.accept(messages)
            self._step()
        return rows > 0

    def _finish_all(self) -> None:
        """Deliver the running completions whose jobs ask for states, with those states."""
        for job in self._scheduler.jobs():
            if job.state_output is not StateOutput.NONE:
                self._settler.stop(job, DRAINING)
        self._states.transfers.synchronize()
        self._settler.deliver_finished(self._end)

    def _report_occupancy(self) -> None:
        now = self._clock()
        self._has_news = now < self._next_report
        if self._has_news:
            return
        self._next_report = now + self.report_seconds
        pool, on_host = self._states.pool, self._states.cache.on_host
        self._metrics.occupancy(self.waiting, self.running)
        self._metrics.states(self._tier, len(pool), len(pool) * pool.row_bytes)
        if self._config.state_host_bytes:
            self._metrics.states("host", on_host, on_host * pool.row_bytes)

    def _run_bursts_and_step(self, batch: Batch) -> None:
        """Launch a burst of what graphs decode, run the rest in a step, and settle.

        Without a rest, the burst is settled after the next one is launched.
        """
        graphed = self._runner.graphed(batch.decodes)
        if not graphed and not self._bursts.running:
            self._run_batch(batch)
            return
        is_mixed = len(graphed) < len(batch.decodes)
        by_step = [each for each in batch.decodes if each.by_step] if is_mixed else []
        rest = Batch(by_step, batch.inputs)
        if self._bursts.running and (len(rest) or not self._bursts.can_follow(graphed)):
            self._settle_bursts()
            graphed = [sequence for sequence in graphed if sequence.decodes]
            rest = rest.without_ended()
        steps = 1 if self._interrupted() or self._scheduler.crowded else self._burst
        if self._on_gpu:
            steps = min(steps, self._scheduler.decode_steps(len(graphed), _BURST_SECONDS))
        launched = False
        try:
            if graphed:
                steps = min(self._burst, _STEPS_BESIDE) if len(rest) else steps
                launched = self._bursts.launch(graphed, steps, alone=not len(rest))
        except faults() as error:
            self._fail_bursts(error, graphed)
        if len(rest):
            self._run_batch(rest)
        self._settle_bursts(leave_running=int(launched and not len(rest)))

    def _settle_bursts(self, leave_running: int = 0) -> None:
        """Settle all bursts but the `leave_running` newest. A failure ends the jobs of all."""
        try:
            self._bursts.settle(self._fail, leave_running)
        except faults() as error:
            self._fail_bursts(error, [])

    def _fail_bursts(self, error: BaseException, sequences: Sequence[ActiveSequence]) -> None:
        """End the jobs of the running bursts, and of sequences that did not get into one."""
        problem = self._as_serve_error(error)
        for job in dict.fromkeys([*self._bursts.discard(), *(each.job for each in sequences)]):
            self._end(job, problem)

    def _run_batch(self, batch: Batch) -> None:
        """Step, then settle. A failure in either ends the jobs of this batch and no others."""
        started, inputs, waits = self._clock(), 0, list[float]()
        for sequence, steps in batch.inputs:
            inputs += steps
            if not sequence.job.begun:
                sequence.job.begun = started
                waits.append(started - sequence.job.submitted)
        if waits:
            self._metrics.queued(waits)
        step_results: list[StepResult] = []
        problem: ServeError | None = None
        try:
            step_results = self._forward(batch, inputs)
        except faults() as error:
            problem = self._as_serve_error(error)
        # Outside the handler: the error holds memory that the next try may need.
        if isinstance(problem, OutOfDeviceMemory) and len(batch) > 1:
            release_cached(self.model.network.device)
            for half in batch.halves():
                if len(half):
                    self._run_batch(half)
            return
        if problem is None:
            try:
                now = self._clock()
                if step_results:
                    tokens = 0
                    for result in step_results:
                        tokens += result.consumed + max(0, len(result.tokens) - 1)
                    self._metrics.step(len(step_results), tokens, now - started)
                    self._metrics.consumed(inputs)
                self._settler.settle(batch, step_results, now, self._fail)
                if step_results:
                    seconds = self._clock() - started
                    self._scheduler.record_step(inputs, len(batch.decodes), tokens, seconds)
            except faults() as error:
                problem = self._as_serve_error(error)
        if problem is not None:
            self._fail_batch(batch, step_results, problem)

    def _forward(self, batch: Batch, inputs: int) -> list[StepResult]:
        """Compute one step of so many inputs, or a burst of steps if sequences only decode."""
        if self.alone:
            self._dispatcher.flush()  # see `_delivers_later`
        burst = 1
        if not batch.inputs:
            burst = min(self._burst, *(sequence.burst_limit for sequence in batch.decodes))
            if self._scheduler.crowded:
                turn = self._scheduler.decode_steps(len(batch.decodes), _TURN_SECONDS)
                burst = min(burst, turn)
        self._threads.apply(len(batch.decodes) + inputs)
        self._states.wait_ready(batch.sequences)
        computed = batch.computed
        return self._runner.step(computed, burst, self._interrupted) if len(computed) else []

    def _fail(self, job: Job, error: BaseException) -> None:
        self._end(job, error if isinstance(error, ServeError) else self._as_serve_error(error))

    def _fail_batch(
        self, batch: Batch, step_results: list[StepResult], problem: ServeError
    ) -> None:
        """End the jobs of a batch whose step or settling failed, and release all of its rows."""
        for step_result in step_results:
            if step_result.row >= 0:
                self._states.pool.release(step_result.row)
        for job in dict.fromkeys(sequence.job for sequence in batch.sequences):
            self._end(job, problem)

    def _interrupted(self) -> bool:
        return self._scheduler.has_waiting or self._draining

    def _end(self, job: Job, error: ServeError | None) -> None:
        for sequence in self._scheduler.drop(job):
            self._runner.leave(sequence)
            self._states.free(sequence)
        self._dispatcher.add_error(job, error)


def _has_last_token(item: SequenceInput) -> bool:
    """Whether there is a token that a completion can follow."""
    return len(item.inputs) > 0 or (item.start is not None and item.start.pending >= 0)
