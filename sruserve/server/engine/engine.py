"""One model's engine: a thread that schedules, steps and settles until it is stopped."""

import logging
import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from weakref import proxy

import torch

from sruserve.kernels.devices import finish_work, use_own_stream
from sruserve.kernels.oom import is_out_of_memory, release_cached
from sruserve.model.folder import Model
from sruserve.server.engine.admission_queue import AdmissionQueue
from sruserve.server.engine.batch import Batch
from sruserve.server.engine.burst_pipeline import BurstPipeline
from sruserve.server.engine.checkpoints import IntermediateStates
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.job import (
    DRAINING,
    Job,
    JobKind,
    Sampling,
    SequenceInput,
    Snapshot,
    StateOutput,
)
from sruserve.server.engine.model_runner import ModelRunner
from sruserve.server.engine.one_step import OneStep
from sruserve.server.engine.output_reader import StepResult
from sruserve.server.engine.pending import FinishQueue
from sruserve.server.engine.result_dispatcher import ResultDispatcher
from sruserve.server.engine.scheduling.scheduler import Scheduler
from sruserve.server.engine.sequence import ActiveSequence
from sruserve.server.engine.settle import Metrics, Settler
from sruserve.server.engine.state_cache.cache import CachedState
from sruserve.server.engine.state_cache.copy_stream import CopyStream, copy_stream_for
from sruserve.server.engine.state_cache.manager import StateManager
from sruserve.server.engine.threads import ThreadPolicy
from sruserve.server.errors import (
    Draining,
    EmptyInput,
    EngineFailure,
    InputTooLong,
    InvalidRequest,
    NoProcess,
    OutOfDeviceMemory,
    ServeError,
    StateTooLarge,
    StateWrongModel,
    faults,
)

_log = logging.getLogger(__name__)
_numbers = count()
# Between two reports of what is held, which take as long as a tenth of a small step.
_REPORT_SECONDS = 0.05
_BURSTS = (16, 64)  # steps on a CPU, where a request may end a burst, and on a GPU
_BURST_SECONDS = 0.0125  # of a burst on a GPU: a new request waits for up to two
_STEPS_BESIDE = 4  # of a burst on a GPU, in the time that the host launches the kernels of a step


class Engine:
    """Serves jobs on one model: submit → schedule → step → settle.

    number: unique among all engines of this process, past ones included.

    Event loops submit jobs. Each loop gets all of its results of a step in one call.
    """

    what = "an engine"

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        metrics: Metrics,
        copy_stream: CopyStream | None = None,
    ) -> None:
        self.model, self._config, self._metrics = model, config, metrics
        self.number = next(_numbers)
        network = model.network
        row_bytes = max(1, network.layout.nbytes)
        if config.state_pool_bytes < 2 * row_bytes:
            raise StateTooLarge(
                f"a state of {model.name} takes {row_bytes} bytes and a step needs two: raise "
                f"state_pool_bytes above {2 * row_bytes}"
            )
        self._states = StateManager(
            network.layout, config, network.device, copy_stream or copy_stream_for(network.device)
        )
        self._admission_queue = AdmissionQueue(config)
        # A proxy, not `self._end`: a reference cycle would keep the memory of a discarded engine.
        end = partial(Engine._end, proxy(self))
        self._scheduler = Scheduler(
            config,
            self._admission_queue,
            self._states,
            not network.supports_streaming,
            model.codec,
            network.crf,
            end,
        )
        self._dispatcher = ResultDispatcher(self._admission_queue.drop)
        self._runner = ModelRunner(model, self._states.pool)
        self._settler = Settler(
            config, self._scheduler, self._runner, self._states, FinishQueue(self._states),
            IntermediateStates(self._states), self._dispatcher, metrics,
        )  # fmt: skip
        self._bursts = BurstPipeline(
            self._scheduler, self._runner, self._settler, self._states, metrics
        )
        self._threads = ThreadPolicy(network, config.threads)
        self._one_step = OneStep(
            model, self._states.pool.rows, self._threads, self._admission_queue,
            self._dispatcher, metrics,
        )  # fmt: skip
        self._burst = config.burst or _BURSTS[network.device.type == "cuda"]
        self._tier = "device" if network.device.type == "cuda" else "pool"
        self._warm, self._draining = threading.Event(), threading.Event()
        self.turns = 0
        self._failure: BaseException | None = None
        self._has_news, self._next_report = False, 0.0
        self._deadline = float("inf")
        self._continuing = 0  # see `continuing`
        self._continuing_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"engine {model.name}", daemon=True)

    @property
    def waiting(self) -> int:
        """Requests whose input is not consumed yet."""
        return self._admission_queue.queued

    @property
    def running(self) -> int:
        """Sequences without a last result."""
        return self._scheduler.running

    @property
    def rows(self) -> int:
        """State rows in use on the device."""
        return len(self._states.pool)

    @property
    def state_limits(self) -> dict[str, int]:
        """The bytes of states that each tier of memory can hold."""
        limits = {self._tier: self._states.pool.capacity * self._states.pool.row_bytes}
        if self._config.state_host_bytes:
            limits["host"] = self._config.state_host_bytes
        return limits

    @property
    def max_cached_states(self) -> int:
        """States that can be cached at a time; 1/64 is left for states in transfer."""
        capacity = self._states.cache.capacity
        return capacity - capacity // 64

    def start(self) -> None:
        """Start the thread, and block until the model is warm.

        Raises `EngineFailure`, or `NoProcess` where no thread can be started.
        """
        try:
            self._thread.start()
        except RuntimeError:
            raise NoProcess from None
        self._warm.wait()
        if self._failure is not None:
            raise EngineFailure(
                f"{self.model.name} does not run: {self._failure}"
            ) from self._failure

    @property
    def alive(self) -> bool:
        """Whether the engine serves, or was asked to end."""
        return self._thread.is_alive() or self._draining.is_set()

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return not self._thread.is_alive()

    @property
    def busy(self) -> bool:
        """Whether there is work; while there is, `turns` grows."""
        return self.waiting > 0 or self.running > 0

    def drain(self, timeout: float) -> None:
        """Admit no more jobs; fail jobs that are not done in `timeout` seconds. Returns at once."""
        self._deadline = time.monotonic() + timeout
        self._draining.set()
        self._admission_queue.wake()

    def stop(self, timeout: float) -> None:
        """Drain, and wait until the thread ends."""
        self.drain(timeout)
        if self._thread.is_alive():
            self._thread.join()

    def check_admission(self, cost: int, tenant: Hashable = None) -> None:
        """Raise `Overloaded` or `Draining` if a tenant's job of `cost` bytes would be refused."""
        if self._draining.is_set():
            raise Draining("the server is stopping; retry on another replica")
        self._admission_queue.check(cost, tenant)

    @contextmanager
    def continuing(self) -> Iterator[None]:
        """The block's work takes several jobs, one after another; from any thread.

        While it lasts, a draining engine waits for its next job, until the drain's time is over.
        """
        with self._continuing_lock:
            self._continuing += 1
        try:
            yield
        finally:
            with self._continuing_lock:
                self._continuing -= 1

    def submit(self, job: Job) -> None:
        """Admit a job, or raise a `ServeError` at once."""
        if self._draining.is_set() and not job.continues:
            raise Draining("the server is stopping; retry on another replica")
        if not job.items:
            raise EmptyInput("the request has no inputs: send at least one")
        if not self.model.network.supports_streaming:
            longest = max(len(item.inputs) for item in job.items)
            if longest > self._config.max_batch_tokens:
                because = self.model.network.not_streamable_because
                raise InputTooLong(
                    f"{self.model.name} reads whole inputs, because {because}: "
                    f"send at most {self._config.max_batch_tokens} steps "
                    f"(SRUSERVE_MAX_BATCH_TOKENS); this input has {longest}"
                )
        if job.kind is JobKind.GENERATE and not all(map(_has_last_token, job.items)):
            raise EmptyInput("nothing to continue: send a prompt, or a state that has one")
        self._check_sampling(job.sampling)
        for item in job.items:
            if item.start is not None and not self._can_read(item.start):
                raise StateWrongModel("the state is cached by another engine; send it to that one")
        job.submitted = time.monotonic()
        self._admission_queue.submit(job)

    def drop(self, cached: CachedState) -> None:
        """Free a cached state after the jobs submitted so far have used it. From any thread."""
        if cached.owner is self._states.cache:
            self._admission_queue.drop(cached)

    def _check_sampling(self, sampling: Sampling) -> None:
        """Raise `InvalidRequest` for unknown tokens, or a token list beside a constraint."""
        if not (sampling.allowed or sampling.logit_bias):
            return
        outputs = self.model.config.outputs or 0
        tokens = [*sampling.allowed, *(token for token, _ in sampling.logit_bias)]
        if any(not 0 <= token < outputs for token in tokens):
            raise InvalidRequest(f"{self.model.name} has only the tokens 0 to {outputs - 1}")
        if sampling.allowed and sampling.constraint is not None:
            raise InvalidRequest("tokens may be limited by a constraint or by a list, not by both")

    def _can_read(self, start: Snapshot) -> bool:
        """Whether the job carries the state itself, or this engine caches it."""
        return not isinstance(start.row, CachedState) or start.row.owner is self._states.cache

    @torch.inference_mode()
    def _run(self) -> None:
        """Serve until stopped. A failure ends the current jobs, never the loop."""
        try:
            use_own_stream(self.model.network.device)
            self.model.network.warm_up(self._threads.apply)
            max_sequences = min(self._config.max_batch_tokens, self._states.max_admitted)
            self._runner.warm_up(max_sequences, self._burst)
            self._report_occupancy()
        except faults() as error:
            _log.exception("%s failed to warm up", self.model.name)
            self._failure = error
            finish_work(self.model.network.device)
            return
        finally:
            self._warm.set()
        while not (self._draining.is_set() and self._is_done()):
            try:
                self._run_once()
            except _DeviceLost:
                self._give_up()
                return
            except faults():
                _log.exception("the engine of %s failed", self.model.name)
                self._bursts.discard()
                self._end_all(EngineFailure("the engine failed; see the server's log"))
            self._dispatcher.flush()
            self.turns += 1
        self._admission_queue.close()
        self._bursts.discard()
        self._end_all(Draining("the server is stopping; retry on another replica"))
        self._states.transfers.synchronize()
        # The engine's memory was allocated on other streams, whose next work gets it.
        finish_work(self.model.network.device)
        self._dispatcher.flush()
        self._metrics.ended()

    def _is_done(self) -> bool:
        """Whether nothing is left to do before the drain ends."""
        waits = self._continuing and time.monotonic() <= self._deadline
        return not (waits or self._scheduler.busy)

    def _give_up(self) -> None:
        """End without using the device again. Probes then fail, so the process gets restarted."""
        _log.critical(
            "%s no longer responds: %s serves nothing until this process is restarted",
            self.model.network.device,
            self.model.name,
        )
        self._admission_queue.close()
        for job in self._scheduler.jobs():
            self._dispatcher.add_error(
                job, EngineFailure("the device failed; retry on another replica")
            )
        self._dispatcher.flush()

    def _run_once(self) -> None:
        """Run one scheduling step. After the drain deadline, end all jobs instead."""
        if self._bursts.running and (time.monotonic() > self._deadline or self._scheduler.idle):
            self._settle_bursts()
            self._settler.deliver_finished(self._end)
        if time.monotonic() > self._deadline:
            self._finish_all()
            self._end_all(Draining("the server stopped before the request was done; retry"))
            return
        if self._states.busy:
            self._states.transfers.poll()
            self._settler.deliver_finished(self._end)
            self._report_occupancy()
            self._dispatcher.flush()  # `next_batch` may wait
        if self._scheduler.idle:
            if self._bursts.has_slots:
                self._bursts.forget()
            self._wait_for_jobs()
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
        """Answer the next jobs in one step, or else let the scheduler have them."""
        polls = self._has_news or self._draining.is_set()
        messages = self._admission_queue.receive(_REPORT_SECONDS if polls else None)
        started = time.monotonic()
        rows = 0
        try:
            rows = self._one_step.answer(messages, self._scheduler.max_input_rows)
        except faults() as error:  # the scheduler's steps find out whose fault it is
            _log.warning("one step of %s failed, so they are scheduled: %s", self.model.name, error)
        if rows:
            self._scheduler.record_step(rows, 0, rows, time.monotonic() - started)
        else:
            self._scheduler.accept(messages)

    def _finish_all(self) -> None:
        """Deliver the running completions whose jobs ask for states, with those states."""
        for job in self._scheduler.jobs():
            if job.state_output is not StateOutput.NONE:
                self._settler.stop(job, DRAINING)
        self._states.transfers.synchronize()
        self._settler.deliver_finished(self._end)

    def _report_occupancy(self) -> None:
        now = time.monotonic()
        self._has_news = now < self._next_report
        if self._has_news:
            return
        self._next_report = now + _REPORT_SECONDS
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
        rest = Batch([each for each in batch.decodes if each.by_step], batch.inputs)
        if self._bursts.running and (len(rest) or not self._bursts.can_follow(graphed)):
            self._settle_bursts()
            graphed = [sequence for sequence in graphed if sequence.decodes]
            rest = rest.without_ended()
        steps = 1 if self._interrupted() else self._burst
        if self.model.network.device.type == "cuda":
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
        self._settle_bursts(keep=int(launched and not len(rest)))

    def _settle_bursts(self, keep: int = 0) -> None:
        """Settle the running bursts except the `keep` newest. A failure ends the jobs of all."""
        try:
            self._bursts.settle(self._fail, keep)
        except faults() as error:
            self._fail_bursts(error, [])

    def _fail_bursts(self, error: BaseException, sequences: Sequence[ActiveSequence]) -> None:
        """End the jobs of the running bursts, and of sequences that did not get into one."""
        problem = self._as_serve_error(error)
        for job in dict.fromkeys([*self._bursts.discard(), *(each.job for each in sequences)]):
            self._end(job, problem)

    def _run_batch(self, batch: Batch) -> None:
        """Step, then settle. A failure in either ends the jobs of this batch and no others."""
        started, inputs = time.monotonic(), 0
        for sequence, steps in batch.inputs:
            inputs += steps
            if not sequence.job.begun:
                sequence.job.begun = started
                self._metrics.queued(started - sequence.job.submitted)
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
                now = time.monotonic()
                if step_results:
                    tokens = 0
                    for result in step_results:
                        tokens += result.consumed + max(0, len(result.tokens) - 1)
                    self._metrics.step(len(step_results), tokens, now - started)
                    self._metrics.consumed(inputs)
                self._settler.settle(batch, step_results, now, self._fail)
                if step_results:
                    seconds = time.monotonic() - started
                    self._scheduler.record_step(inputs, len(batch.decodes), tokens, seconds)
            except faults() as error:
                problem = self._as_serve_error(error)
        if problem is not None:
            self._fail_batch(batch, step_results, problem)

    def _forward(self, batch: Batch, inputs: int) -> list[StepResult]:
        """Compute one step of so many inputs, or a burst of steps if sequences only decode."""
        burst = 1
        if not batch.inputs:
            burst = min(self._burst, *(sequence.burst_limit for sequence in batch.decodes))
        self._threads.apply(len(batch.decodes) + inputs)
        self._states.wait_ready(batch.sequences)
        computed = batch.computed
        return self._runner.step(computed, burst, self._interrupted) if len(computed) else []

    def _as_serve_error(self, error: BaseException) -> ServeError:
        """Log the failure of a step, and return the error for its jobs.

        Raises `_DeviceLost` if the device no longer responds.
        """
        if is_out_of_memory(error):
            _log.warning("a step of %s ran out of memory: %s", self.model.name, error)
            return OutOfDeviceMemory()
        _log.error("a step of %s failed", self.model.name, exc_info=error)
        if not finish_work(self.model.network.device):
            raise _DeviceLost from error
        return EngineFailure("the model failed on this batch; see the server's log")

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
        return self._scheduler.has_waiting or self._draining.is_set()

    def _end(self, job: Job, error: ServeError | None) -> None:
        """End a job early: free its rows, and deliver the error to a client that is still there."""
        for sequence in self._scheduler.drop(job):
            self._states.free(sequence)
        self._dispatcher.add_error(job, error)

    def _end_all(self, error: ServeError) -> None:
        for job in self._scheduler.jobs():
            self._end(job, error)


class _DeviceLost(Exception):
    """A device fault, after which the device no longer responds to this process."""


def _has_last_token(item: SequenceInput) -> bool:
    """Whether there is a token that a completion can follow."""
    return len(item.inputs) > 0 or (item.start is not None and item.start.pending >= 0)
