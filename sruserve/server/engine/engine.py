"""One model's engine: a thread that schedules, steps and settles until it is stopped."""

import logging
import threading
import time
from typing import Protocol

import torch

from sruserve.model.folder import Model
from sruserve.server.engine.jobs import Item, Job, Kind
from sruserve.server.engine.limits import Limits
from sruserve.server.engine.outbox import Outbox
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
        self._outbox = Outbox()
        self._stepper = Stepper(model, self._pool)
        self._threads = Threads(model.network, limits.threads)
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

    @property
    def alive(self) -> bool:
        """Whether the engine serves, or has been told to end."""
        return self._thread.is_alive() or self._draining.is_set()

    def drain(self, timeout: float) -> None:
        """Take no more jobs, and fail what is not done in `timeout` seconds. Returns at once."""
        self._deadline = time.monotonic() + timeout
        self._draining.set()
        self._scheduler.wake()

    def stop(self, timeout: float) -> None:
        """Drain, and wait for the end."""
        self.drain(timeout)
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
                    f"{self._limits.max_batch_tokens} steps (SRUSERVE_MAX_BATCH_TOKENS); this one "
                    f"has {longest}"
                )
        if job.kind is Kind.GENERATE and not all(map(_begins, job.items)):
            raise EmptyInput("nothing to go on from: send a prompt, or a state that has one")
        job.submitted = time.monotonic()
        self._scheduler.submit(job)

    @torch.inference_mode()
    def _run(self) -> None:
        """Serve until stopped. A failure ends the jobs that are here, never the loop."""
        try:
            self.model.network.warm_up(self._threads.use)
        except Exception as error:
            _log.exception("%s failed to warm up", self.model.name)
            self._failure = error
            return
        finally:
            self._warm.set()
        while not (self._draining.is_set() and not self._scheduler.busy):
            try:
                self._turn()
            except Exception:
                _log.exception("the engine of %s failed", self.model.name)
                self._end_all(EngineFailure("the engine failed; see the server's log"))
            self._outbox.send()
        self._scheduler.close()
        self._end_all(Draining("the server is stopping; retry on another replica"))
        self._outbox.send()

    def _turn(self) -> None:
        """One step, or at the end of a stop's patience the end of everything."""
        if time.monotonic() > self._deadline:
            self._end_all(Draining("the server stopped before this was done; retry"))
            return
        batch = self._scheduler.next_batch()
        if batch.decodes or batch.inputs:
            self._take(batch)
        rows = len(self._pool)
        self._metrics.occupancy(self.waiting, self.running, rows, rows * self._pool.row_bytes)

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
        for advance in advances:
            if advance.row >= 0:
                self._pool.release(advance.row)
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
            if advance.answer is not None:
                stream.answer = advance.answer
            stream.scores += advance.scores
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
                self._finish(stream, stop)
                continue
            self._scheduler.decode(stream)
            if stream.job.stream and now - stream.told_at >= interval:
                self._outbox.tell(stream.job, stream.index, stream.tell(now))
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
        self._outbox.tell(stream.job, stream.index, stream.finish(self._pool, stop))
        self._free(stream)
        if self._scheduler.finish(stream):
            self._outbox.end(stream.job)

    def _end(self, job: Job, error: ServeError | None) -> None:
        """End a job early: its rows are free again, its client (if there is one) gets the error."""
        for stream in self._scheduler.drop(job):
            self._free(stream)
        self._outbox.end(job, error)

    def _end_all(self, error: ServeError) -> None:
        for job in self._scheduler.jobs():
            self._end(job, error)

    def _free(self, stream: Stream) -> None:
        if stream.row >= 0:
            self._pool.release(stream.row)
            stream.row = -1


def _begins(item: Item) -> bool:
    """Whether there is a token that a completion can follow."""
    return len(item.inputs) > 0 or (item.start is not None and item.start.pending >= 0)
