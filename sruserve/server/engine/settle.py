"""Make a step true: fresh rows become the streams', what was computed is told, ends are ends."""

from collections.abc import Callable
from typing import Protocol

from sruserve.server.engine.batch import Batch
from sruserve.server.engine.departures import Departure, Departures, Stopped
from sruserve.server.engine.jobs import Job, Keep, Kind
from sruserve.server.engine.limits import Limits
from sruserve.server.engine.outbox import Outbox
from sruserve.server.engine.readout import Advance
from sruserve.server.engine.scheduler import Scheduler
from sruserve.server.engine.states import States, trouble
from sruserve.server.engine.step import Stepper
from sruserve.server.errors import ServeError

_CROWD = 64  # open completions at which text is flushed as rarely as it may be


class Metrics(Protocol):
    """What the engine tells of itself."""

    def step(self, sequences: int, tokens: int, seconds: float) -> None: ...
    def queued(self, seconds: float) -> None: ...
    def generated(self, tokens: int, characters: int) -> None: ...
    def consumed(self, tokens: int) -> None: ...
    def replayed(self) -> None: ...
    def occupancy(self, waiting: int, running: int) -> None: ...
    def states(self, tier: str, streams: int, state_bytes: int) -> None: ...
    def ended(self) -> None: ...


class Settler:
    """Settles steps. A failure leaves rows in the advances that are not settled."""

    def __init__(
        self,
        limits: Limits,
        scheduler: Scheduler,
        stepper: Stepper,
        states: States,
        departures: Departures,
        outbox: Outbox,
        metrics: Metrics,
    ) -> None:
        self._limits, self._scheduler, self._stepper = limits, scheduler, stepper
        self._states, self._departures = states, departures
        self._outbox, self._metrics = outbox, metrics

    def settle(
        self,
        batch: Batch,
        advances: list[Advance],
        now: float,
        fail: Callable[[Job, Exception], None],
    ) -> None:
        """Swap rows, tell results, let go of the streams that are done.

        fail: called with a job whose text or state could not be made, and why.
        """
        for stream, count in batch.inputs:
            stream.done += count
        self._scheduler.settle(batch)
        generated = characters = 0
        interval = self._flush_seconds()
        stopped: list[Stopped] = []
        failed: dict[Job, Exception] = {}
        for advance in advances:
            stream = advance.stream
            stream.found.add(advance.found)
            if not advance.tokens:
                self._swap(advance)
                stream.steps += advance.consumed
                continue
            try:
                used, stop, told = self._write(advance)
            except Exception as error:
                failed[stream.job] = error
                row, advance.row = advance.row, -1
                self._states.pool.release(row)
                continue
            generated, characters = generated + used, characters + told
            self._swap(advance)
            stream.steps += advance.consumed + used - 1
            stream.pending = advance.tokens[used - 1]
            if stop is not None or not stream.tokens_left:
                stopped.append((stream, stop))
                continue
            self._scheduler.decode(stream)
            if stream.job.stream and now - stream.told_at >= interval:
                self._outbox.tell(stream.job, stream.index, stream.tell(now))
        for stream, _ in batch.inputs:
            samples = stream.job.kind is Kind.GENERATE and stream.job.sampling.max_tokens
            if not stream.remaining and not samples:
                stopped.append((stream, None))
        for job, problem in failed.items():
            fail(job, problem)
        stopped = [(stream, stop) for stream, stop in stopped if stream.job not in failed]
        for stream, _ in stopped:
            self._scheduler.retire(stream)
        self._departures.begin(stopped)
        if generated:
            self._metrics.generated(generated, characters)

    def _write(self, advance: Advance) -> tuple[int, str | None, int]:
        """Assemble what was sampled; a stop inside it takes the state back to the stop."""
        stream = advance.stream
        used, stop, told = stream.write(advance.tokens, advance.logprobs)
        if used < len(advance.tokens) and stream.job.keep is not Keep.NOTHING:
            self._stepper.replay(stream, advance.tokens[: used - 1], advance.row)
            self._metrics.replayed()
        return used, stop, told

    def tell_departed(self, fail: Callable[[Job, ServeError], None]) -> None:
        """Tell the last results of the streams whose states are there.

        fail: called with a job of whose state nothing came.
        """
        for departure in self._departures.ended():
            try:
                self._tell(departure)
            except Exception as error:
                self._departures.undo(departure)
                fail(departure.stream.job, trouble(error))

    def _tell(self, departure: Departure) -> None:
        if departure.error is not None:
            raise departure.error
        stream = departure.stream
        result = stream.finish(departure.row, departure.stop)
        self._states.free(stream)
        self._outbox.tell(stream.job, stream.index, result)
        if self._scheduler.finish(stream):
            self._outbox.end(stream.job)

    def _swap(self, advance: Advance) -> None:
        row, advance.row = advance.row, -1
        self._states.advance(advance.stream, row)

    def _flush_seconds(self) -> float:
        """How often a stream's text is told: an HTTP event costs more than a step."""
        limits, crowd = self._limits, min(1.0, self._scheduler.running / _CROWD)
        return (limits.flush_ms + (limits.flush_max_ms - limits.flush_ms) * crowd) / 1e3
