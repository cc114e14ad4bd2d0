"""One model's engine: a thread that schedules, steps and settles until it is stopped."""

import logging
import threading
import time
from collections.abc import Hashable
from functools import partial
from itertools import count
from weakref import proxy

import torch

from sruserve.kernels.devices import is_dead, use_own_stream
from sruserve.kernels.memory import give_back, is_out_of_memory
from sruserve.model.folder import Model
from sruserve.server.engine.batch import Batch
from sruserve.server.engine.checkpoints import Checkpoints
from sruserve.server.engine.departures import Departures
from sruserve.server.engine.inbox import Inbox
from sruserve.server.engine.jobs import DRAINING, Item, Job, Keep, Kind, Sampling, Snapshot
from sruserve.server.engine.lanes import Lane, lane_of
from sruserve.server.engine.limits import Limits
from sruserve.server.engine.outbox import Outbox
from sruserve.server.engine.readout import Advance
from sruserve.server.engine.residents import Resident
from sruserve.server.engine.scheduler import Scheduler
from sruserve.server.engine.settle import Metrics, Settler
from sruserve.server.engine.states import States
from sruserve.server.engine.step import Stepper
from sruserve.server.engine.threads import Threads
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


class Engine:
    """Serves jobs on one model: submit → schedule → step → settle.

    number: no other engine of this process has had it.

    Jobs come from an event loop's thread; results go back to it, all of a step's in one call.
    """

    what = "an engine"

    def __init__(
        self, model: Model, limits: Limits, metrics: Metrics, lane: Lane | None = None
    ) -> None:
        self.model, self._limits, self._metrics = model, limits, metrics
        self.number = next(_numbers)
        network = model.network
        row_bytes = max(1, network.layout.nbytes)
        if limits.state_pool_bytes < 2 * row_bytes:
            raise StateTooLarge(
                f"a state of {model.name} takes {row_bytes} bytes and a step needs two: raise "
                f"state_pool_bytes above {2 * row_bytes}"
            )
        self._states = States(
            network.layout, limits, network.device, lane or lane_of(network.device)
        )
        self._inbox = Inbox(limits)
        # Not `self._end`: a cycle would keep the memory of an engine that nobody holds any more.
        end = partial(Engine._end, proxy(self))
        self._scheduler = Scheduler(
            limits, self._inbox, self._states, not network.streams, model.codec, end
        )
        self._outbox = Outbox(self._inbox.drop)
        self._stepper = Stepper(model, self._states.pool)
        self._settler = Settler(
            limits, self._scheduler, self._stepper, self._states, Departures(self._states),
            Checkpoints(self._states), self._outbox, metrics,
        )  # fmt: skip
        self._tier = "device" if network.device.type == "cuda" else "pool"
        self._threads = Threads(network, limits.threads)
        self._warm, self._draining = threading.Event(), threading.Event()
        self.turns = 0
        self._failure: BaseException | None = None
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._run, name=f"engine {model.name}", daemon=True)

    @property
    def waiting(self) -> int:
        """Requests whose input is not consumed yet."""
        return self._inbox.queued

    @property
    def running(self) -> int:
        """Sequences in work."""
        return self._scheduler.running

    @property
    def rows(self) -> int:
        """State rows in use, on the device."""
        return len(self._states.pool)

    @property
    def most_kept(self) -> int:
        """States that can be kept, but for a few that are on their way."""
        most = self._states.residents.most
        return most - most // 64

    def start(self) -> None:
        """Warm the model up, then serve. Blocks until warm; raises `NoProcess`."""
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
        """Whether the engine serves, or has been told to end."""
        return self._thread.is_alive() or self._draining.is_set()

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return not self._thread.is_alive()

    @property
    def busy(self) -> bool:
        """Whether there is something to do; while there is, `turns` grows."""
        return self.waiting > 0 or self.running > 0

    def drain(self, timeout: float) -> None:
        """Take no more jobs, and fail what is not done in `timeout` seconds. Returns at once."""
        self._deadline = time.monotonic() + timeout
        self._draining.set()
        self._inbox.wake()

    def stop(self, timeout: float) -> None:
        """Drain, and wait for the end."""
        self.drain(timeout)
        if self._thread.is_alive():
            self._thread.join()

    def check_admission(self, cost: int, tenant: Hashable = None, inputs: int = 1) -> None:
        """Raise `Overloaded` or `Draining` if a tenant's job of `cost` bytes has no chance."""
        if self._draining.is_set():
            raise Draining("the server is stopping; retry on another replica")
        self._inbox.check(cost, tenant, inputs)

    def submit(self, job: Job) -> None:
        """Admit a job, or raise at once."""
        if self._draining.is_set():
            raise Draining("the server is stopping; retry on another replica")
        if not job.items:
            raise EmptyInput("a request without inputs has no outcome: send at least one")
        if not self.model.network.streams:
            longest = max(len(item.inputs) for item in job.items)
            if longest > self._limits.max_batch_tokens:
                raise InputTooLong(
                    f"{self.model.name} reads whole inputs, because {self.model.network.whole}: of "
                    f"at most {self._limits.max_batch_tokens} steps (SRUSERVE_MAX_BATCH_TOKENS), "
                    f"and this one has {longest}"
                )
        if job.kind is Kind.GENERATE and not all(map(_begins, job.items)):
            raise EmptyInput("nothing to go on from: send a prompt, or a state that has one")
        self._check_sampling(job.sampling)
        for item in job.items:
            if item.start is not None and not self._keeps(item.start):
                raise StateWrongModel("the state is kept by another engine; send it to its own")
        job.submitted = time.monotonic()
        self._inbox.submit(job)

    def drop(self, resident: Resident) -> None:
        """Forget a kept state, once the jobs submitted so far are through with it; any thread."""
        if resident.owner is self._states.residents:
            self._inbox.drop(resident)

    def _check_sampling(self, sampling: Sampling) -> None:
        """Raise `InvalidRequest` for tokens that the model does not have."""
        if not (sampling.allowed or sampling.logit_bias):
            return
        outputs = self.model.config.outputs or 0
        tokens = [*sampling.allowed, *(token for token, _ in sampling.logit_bias)]
        if any(not 0 <= token < outputs for token in tokens):
            raise InvalidRequest(f"{self.model.name} has the tokens 0 to {outputs - 1}")
        if sampling.allowed and sampling.constraint is not None:
            raise InvalidRequest("tokens may be limited by a constraint or by a list, not by both")

    def _keeps(self, start: Snapshot) -> bool:
        """Whether this engine can read a state: it keeps it, or the state came with the job."""
        return not isinstance(start.row, Resident) or start.row.owner is self._states.residents

    @torch.inference_mode()
    def _run(self) -> None:
        """Serve until stopped. A failure ends the jobs that are here, never the loop."""
        try:
            use_own_stream(self.model.network.device)
            self.model.network.warm_up(self._threads.use)
            most_streams = min(self._limits.max_batch_tokens, self._states.room)
            self._stepper.warm_up(most_streams, self._limits.burst)
            self._tell_occupancy()
        except faults() as error:
            _log.exception("%s failed to warm up", self.model.name)
            self._failure = error
            return
        finally:
            self._warm.set()
        while not (self._draining.is_set() and not self._scheduler.busy):
            try:
                self._turn()
            except _DeadDevice:
                self._give_up()
                return
            except faults():
                _log.exception("the engine of %s failed", self.model.name)
                self._end_all(EngineFailure("the engine failed; see the server's log"))
            self._outbox.send()
            self.turns += 1
        self._inbox.close()
        self._end_all(Draining("the server is stopping; retry on another replica"))
        self._states.moves.finish()
        self._outbox.send()
        self._metrics.ended()

    def _give_up(self) -> None:
        """End without touching the device again, so that probes fail and somebody restarts this."""
        _log.critical(
            "%s answers no more: %s serves nothing until this process is started again",
            self.model.network.device,
            self.model.name,
        )
        self._inbox.close()
        for job in self._scheduler.jobs():
            self._outbox.end(job, EngineFailure("the device failed; retry on another replica"))
        self._outbox.send()

    def _turn(self) -> None:
        """Run one scheduling step. After the drain deadline, end all jobs instead."""
        if time.monotonic() > self._deadline:
            self._hand_back()
            self._end_all(Draining("the server stopped before this was done; retry"))
            return
        if self._states.busy:
            self._states.moves.poll()
            self._settler.tell_departed(self._end)
            self._tell_occupancy()
            self._outbox.send()  # before there may be nothing to do but to wait
        batch = self._scheduler.next_batch()
        if len(batch):
            self._take(batch)
            self._settler.tell_departed(self._end)
            self._states.make_room(self.running)  # early, so that the next step finds it
        self._tell_occupancy()

    def _hand_back(self) -> None:
        """Give the completions that run back to their clients, with their states, as asked for."""
        for job in self._scheduler.jobs():
            if job.keep is not Keep.NOTHING:
                self._settler.stop(job, DRAINING)
        self._states.moves.finish()
        self._settler.tell_departed(self._end)

    def _tell_occupancy(self) -> None:
        self._metrics.occupancy(self.waiting, self.running)
        pool, residents = self._states.pool, self._states.residents
        self._metrics.states(self._tier, len(pool), len(pool) * pool.row_bytes)
        if self._limits.state_host_bytes:
            kept = residents.on_host
            self._metrics.states("host", kept, kept * pool.row_bytes)

    def _take(self, batch: Batch) -> None:
        """Step, then settle. A failure in either ends the jobs of this batch and no others."""
        started = time.monotonic()
        for stream, _ in batch.inputs:
            if not stream.job.begun:
                stream.job.begun = True
                self._metrics.queued(started - stream.job.submitted)
        advances: list[Advance] = []
        problem: ServeError | None = None
        try:
            advances = self._advance(batch)
        except faults() as error:
            problem = self._explain(error)
        # Here and not above: what the error holds on to is memory that the next try may need.
        if isinstance(problem, OutOfDeviceMemory) and len(batch) > 1:
            give_back(self.model.network.device)
            for half in batch.halves():
                if len(half):
                    self._take(half)
            return
        if problem is None:
            try:
                now = time.monotonic()
                if advances:
                    tokens = sum(a.consumed + max(0, len(a.tokens) - 1) for a in advances)
                    self._metrics.step(len(advances), tokens, now - started)
                    self._metrics.consumed(sum(count for _, count in batch.inputs))
                self._settler.settle(batch, advances, now, self._fail)
                if advances:
                    self._scheduler.took(batch, tokens, time.monotonic() - started)
            except faults() as error:
                problem = self._explain(error)
        if problem is not None:
            self._abandon(batch, advances, problem)

    def _advance(self, batch: Batch) -> list[Advance]:
        """Compute one step, or a burst of them where streams only decode."""
        burst = 1
        if not batch.inputs:
            burst = min(self._limits.burst, *(stream.unbroken for stream in batch.decodes))
        self._threads.use(len(batch.decodes) + sum(count for _, count in batch.inputs))
        self._states.await_arrivals(batch.streams)
        computed = batch.computed
        return self._stepper.step(computed, burst, self._interrupted) if len(computed) else []

    def _explain(self, error: BaseException) -> ServeError:
        """What the jobs of a step that failed are told; what it was is logged."""
        if is_out_of_memory(error):
            _log.warning("a step of %s ran out of memory: %s", self.model.name, error)
            return OutOfDeviceMemory()
        _log.error("a step of %s failed", self.model.name, exc_info=error)
        if is_dead(self.model.network.device):
            raise _DeadDevice from error
        return EngineFailure("the model failed on this batch; see the server's log")

    def _fail(self, job: Job, error: BaseException) -> None:
        self._end(job, error if isinstance(error, ServeError) else self._explain(error))

    def _abandon(self, batch: Batch, advances: list[Advance], problem: ServeError) -> None:
        """End the jobs of a batch whose step or settling failed; none of its rows stays in use."""
        for advance in advances:
            if advance.row >= 0:
                self._states.pool.release(advance.row)
        for job in dict.fromkeys(stream.job for stream in batch.streams):
            self._end(job, problem)

    def _interrupted(self) -> bool:
        return self._scheduler.contended or self._draining.is_set()

    def _end(self, job: Job, error: ServeError | None) -> None:
        """End a job early: its rows are free again, its client (if there is one) gets the error."""
        for stream in self._scheduler.drop(job):
            self._states.free(stream)
        self._outbox.end(job, error)

    def _end_all(self, error: ServeError) -> None:
        for job in self._scheduler.jobs():
            self._end(job, error)


class _DeadDevice(Exception):
    """A fault on the device, after which it answers this process no more."""


def _begins(item: Item) -> bool:
    """Whether there is a token that a completion can follow."""
    return len(item.inputs) > 0 or (item.start is not None and item.start.pending >= 0)
