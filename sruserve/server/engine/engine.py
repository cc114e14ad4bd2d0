"""One model's engine: a thread that schedules, steps and settles until it is stopped."""

import asyncio
import logging
import threading
import time
from typing import Protocol

import torch

from sruserve.model.folder import Model
from sruserve.server.engine.jobs import Item, Job, Kind, Result
from sruserve.server.engine.limits import Limits
from sruserve.server.engine.pool import StatePool
from sruserve.server.engine.scheduler import Batch, Scheduler
from sruserve.server.engine.step import Advance, Stepper
from sruserve.server.engine.streams import Stream
from sruserve.server.engine.threads import Threads
from sruserve.server.errors import (
    Draining,
    EmptyInput,
    EngineFailure,
    InputTooLong,
    ServeError,
    StateTooLarge,
)

_log = logging.getLogger(__name__)
_MAX_ROWS = 1 << 20
_CROWD = 64  # open completions at which text is flushed as rarely as it may be


class Metrics(Protocol):
    """What the engine tells of itself."""

    def step(self, sequences: int, tokens: int, seconds: float) -> None: ...
    def queued(self, seconds: float) -> None: ...
    def generated(self, tokens: int, characters: int) -> None: ...
    def consumed(self, tokens: int) -> None: ...
    def replayed(self) -> None: ...
    def occupancy(self, waiting: int, running: int, rows: int, state_bytes: int) -> None: ...


class Engine:
    """Serves jobs on one model: submit → schedule → step → settle.

    Jobs come from an event loop's thread; results go back to it, all of a step's in one call.
    """

    def __init__(self, model: Model, limits: Limits, metrics: Metrics) -> None:
        self.model, self._limits, self._metrics = model, limits, metrics
        row_bytes = max(1, model.network.layout.nbytes)
        rows = min(limits.state_pool_bytes // row_bytes, _MAX_ROWS)
        if rows < 2:
            raise StateTooLarge(
                f"a state of {model.name} takes {row_bytes} bytes and a step needs two: raise "
                f"state_pool_bytes above {2 * row_bytes}"
            )
        self._pool = StatePool(rows, model.network.layout)
        self._scheduler = Scheduler(
            limits, rows // 2, not model.network.streams, model.codec, self._end
        )
        self._stepper = Stepper(model, self._pool)
        self._threads = Threads(model.network, limits.threads)
        self._left: dict[Job, int] = {}  # items that have no final result yet
        self._outbox: dict[asyncio.AbstractEventLoop, list[_Note]] = {}
        self._warm, self._draining = threading.Event(), threading.Event()
        self._failure: Exception | None = None
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._run, name=f"engine {model.name}", daemon=True)

    @property
    def waiting(self) -> int:
        """Requests whose input is not consumed yet."""
        return self._scheduler.queued

    @property
    def running(self) -> int:
        """Sequences in work."""
        return self._scheduler.running

    @property
    def rows(self) -> int:
        """State rows in use."""
        return len(self._pool)

    def start(self) -> None:
        """Warm the model up, then serve. Blocks until warm."""
        self._thread.start()
        self._warm.wait()
        if self._failure is not None:
            raise EngineFailure(f"{self.model.name} does not run: {self._failure}")

    def stop(self, timeout: float) -> None:
        """Take no more jobs, work on for up to `timeout` seconds, fail the rest."""
        self._deadline = time.monotonic() + timeout
        self._draining.set()
        self._scheduler.wake()
        if self._thread.is_alive():
            self._thread.join()

    def check_admission(self, cost: int) -> None:
        """Raise `Overloaded` or `Draining` if a job of `cost` bytes has no chance."""
        if self._draining.is_set():
            raise Draining("the server is stopping; retry on another replica")
        self._scheduler.check(cost)

    def submit(self, job: Job) -> None:
        """Admit a job, or raise at once."""
        self.check_admission(job.cost)
        if not self.model.network.streams:
            longest = max(len(item.inputs) for item in job.items)
            if longest > self._limits.max_batch_tokens:
                raise InputTooLong(
                    f"{self.model.name} is bidirectional and reads whole inputs of at most "
                    f"{self._limits.max_batch_tokens} steps; this one has {longest}"
                )
        if job.kind is Kind.GENERATE and not all(map(_begins, job.items)):
            raise EmptyInput("nothing to go on from: send a prompt, or a state that has one")
        job.submitted = time.monotonic()
        self._scheduler.submit(job)

    @torch.inference_mode()
    def _run(self) -> None:
        """Serve until stopped. A failed batch fails its own jobs, never the loop."""
        try:
            self.model.network.warm_up(self._threads.use)
        except Exception as error:
            _log.exception("%s failed to warm up", self.model.name)
            self._failure = error
            return
        finally:
            self._warm.set()
        while not (self._draining.is_set() and self._idle()):
            batch = self._scheduler.next_batch()
            if time.monotonic() > self._deadline:
                for job in self._scheduler.jobs():
                    self._end(job, Draining("the server stopped before this was done; retry"))
            elif batch.decodes or batch.inputs:
                self._take(batch)
            self._send()

    def _idle(self) -> bool:
        return not self._scheduler.running and not self._scheduler.contended

    def _take(self, batch: Batch) -> None:
        """Step, then settle. A failure in either ends the jobs of this batch and no others."""
        started = time.monotonic()
        for stream, _ in batch.inputs:
            if not stream.job.begun:
                stream.job.begun = True
                self._metrics.queued(started - stream.job.submitted)
        burst = 1
        if not batch.inputs:
            left = min(stream.tokens_left for stream in batch.decodes)
            burst = min(self._limits.burst, left)
        self._threads.use(len(batch.decodes) + sum(count for _, count in batch.inputs))
        computed = Batch(batch.decodes, [(s, n) for s, n in batch.inputs if n])
        advances: list[Advance] = []
        try:
            if computed.decodes or computed.inputs:
                advances = self._stepper.step(computed, burst, self._interrupted)
            now = time.monotonic()
            if advances:
                tokens = sum(a.consumed + max(0, len(a.tokens) - 1) for a in advances)
                self._metrics.step(len(advances), tokens, now - started)
                self._metrics.consumed(sum(n for _, n in computed.inputs))
            self._settle(batch, advances, now)
        except Exception:
            _log.exception("a step of %s failed", self.model.name)
            self._abandon(batch, advances)

    def _abandon(self, batch: Batch, advances: list[Advance]) -> None:
        """End the jobs of a batch whose step or settling failed; none of its rows stays in use."""
        streams = [*batch.decodes, *(stream for stream, _ in batch.inputs)]
        for row in {stream.row for stream in streams} | {advance.row for advance in advances}:
            if row >= 0:
                self._pool.release(row)
        for stream in streams:
            stream.row = -1
        for job in dict.fromkeys(stream.job for stream in streams):
            self._end(job, EngineFailure("the model failed on this batch; see the server's log"))

    def _interrupted(self) -> bool:
        return self._scheduler.contended or self._draining.is_set()

    def _settle(self, batch: Batch, advances: list[Advance], now: float) -> None:
        """Make a step true: swap rows, tell results, end what is finished."""
        for stream, count in batch.inputs:
            stream.done += count
        self._scheduler.settle(batch)
        generated = characters = 0
        interval = self._flush_seconds()
        for advance in advances:
            stream = advance.stream
            if not advance.tokens:
                self._swap(advance)
                stream.steps += advance.consumed
                continue
            used, stop, told = stream.write(advance.tokens, advance.logprobs)
            generated, characters = generated + used, characters + told
            if used < len(advance.tokens) and stream.job.keep_state:
                self._stepper.replay(stream, advance.tokens[: used - 1], advance.row)
                self._metrics.replayed()
            self._swap(advance)
            stream.steps += advance.consumed + used - 1
            stream.pending = advance.tokens[used - 1]
            if stop is not None or not stream.tokens_left:
                self._scheduler.forget(stream)
                self._finish(stream, stop)
                continue
            self._scheduler.decode(stream)
            if stream.job.stream and now - stream.told_at >= interval:
                self._tell(stream.job, stream.index, stream.tell(now))
        for stream, _ in batch.inputs:
            samples = stream.job.kind is Kind.GENERATE and stream.job.sampling.max_tokens
            if not stream.remaining and not samples:
                self._finish(stream, None)
        if generated:
            self._metrics.generated(generated, characters)

    def _swap(self, advance: Advance) -> None:
        stream = advance.stream
        if stream.row >= 0:
            self._pool.release(stream.row)
        stream.row, advance.row = advance.row, -1

    def _flush_seconds(self) -> float:
        """How often a stream's text is told: an HTTP event costs more than a step."""
        limits, crowd = self._limits, min(1.0, self._scheduler.running / _CROWD)
        return (limits.flush_ms + (limits.flush_max_ms - limits.flush_ms) * crowd) / 1e3

    def _finish(self, stream: Stream, stop: str | None) -> None:
        """Tell a stream's last result and give its row back."""
        job = stream.job
        self._tell(job, stream.index, stream.finish(self._pool, stop))
        if stream.row >= 0:
            self._pool.release(stream.row)
            stream.row = -1
        left = self._left.get(job, len(job.items)) - 1
        if left:
            self._left[job] = left
        else:
            self._left.pop(job, None)
            self._note(job, _Note(job))

    def _end(self, job: Job, error: ServeError | None) -> None:
        """End a job early: its rows are free again, its client (if there is one) gets the error."""
        for stream in self._scheduler.drop(job):
            if stream.row >= 0:
                self._pool.release(stream.row)
                stream.row = -1
        self._left.pop(job, None)
        self._note(job, _Note(job, error=error))

    def _tell(self, job: Job, index: int, result: Result) -> None:
        self._note(job, _Note(job, index, result))

    def _note(self, job: Job, note: "_Note") -> None:
        self._outbox.setdefault(job.loop, []).append(note)

    def _send(self) -> None:
        """Hand everything that this step settled to the event loop, in one call."""
        rows = len(self._pool)
        self._metrics.occupancy(self.waiting, self.running, rows, rows * self._pool.row_bytes)
        for loop, notes in self._outbox.items():
            try:
                loop.call_soon_threadsafe(_deliver, notes)
            except RuntimeError:  # the loop is closed: nobody is there to be told
                _log.debug("results of a closed event loop are dropped")
        self._outbox = {}


def _begins(item: Item) -> bool:
    """Whether there is a token that a completion can follow."""
    return len(item.inputs) > 0 or (item.start is not None and item.start.pending >= 0)


class _Note:
    """A result of one item, or (without one) the end of its job."""

    __slots__ = ("error", "index", "job", "result")

    def __init__(
        self,
        job: Job,
        index: int = -1,
        result: Result | None = None,
        error: ServeError | None = None,
    ) -> None:
        self.job, self.index, self.result, self.error = job, index, result, error


def _deliver(notes: list[_Note]) -> None:
    """On the event loop: tell results in order; every job's outcome is told once."""
    for note in notes:
        done = note.job.done
        if done.done():
            continue
        try:
            if note.result is not None:
                note.job.deliver(note.index, note.result)
            elif note.error is not None:
                done.set_exception(note.error)
            else:
                done.set_result(None)
        except Exception as error:
            done.set_exception(error)
