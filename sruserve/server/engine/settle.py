"""Commit a step: assign the new state rows, deliver results, finish sequences that ended."""

from collections.abc import Callable, Sequence
from typing import Protocol

from sruserve.server.engine.batch import Batch
from sruserve.server.engine.checkpoints import Checkpoints
from sruserve.server.engine.departures import Departure, Departures, Stopped
from sruserve.server.engine.jobs import LENGTH, Ending, Job, Keep
from sruserve.server.engine.limits import Limits
from sruserve.server.engine.outbox import Outbox
from sruserve.server.engine.readout import Advance
from sruserve.server.engine.scheduler import Scheduler
from sruserve.server.engine.states import States, trouble
from sruserve.server.engine.step import Stepper
from sruserve.server.engine.streams import Stream
from sruserve.server.errors import ServeError, faults

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
        checkpoints: Checkpoints,
        outbox: Outbox,
        metrics: Metrics,
    ) -> None:
        self._limits, self._scheduler, self._stepper = limits, scheduler, stepper
        self._states, self._departures, self._checkpoints = states, departures, checkpoints
        self._outbox, self._metrics = outbox, metrics

    def settle(
        self,
        batch: Batch,
        advances: list[Advance],
        now: float,
        fail: Callable[[Job, BaseException], None],
    ) -> None:
        """Swap rows, tell results, let go of the streams that are done.

        fail: called with a job whose text or state could not be made, and why.
        """
        for stream, count in batch.inputs:
            if not (stream.late and count == stream.remaining):  # or it is taken again
                stream.done += count
        self._scheduler.settle(batch)
        generated = characters = 0
        interval = self._flush_seconds()
        stopped: list[Stopped] = []
        marked: list[Stream] = []
        failed: dict[Job, BaseException] = {}
        for advance in advances:
            stream = advance.stream
            if advance.tokens and stream.late and not stream.spelled_ahead:  # it waits
                row, advance.row = advance.row, -1
                self._states.pool.release(row)
                continue
            stream.found.add(advance.found)
            if not advance.tokens:
                self._swap(advance)
                stream.steps += advance.consumed
                continue
            try:
                used, ending, told = self._write(advance)
            except faults() as error:
                failed[stream.job] = error
                row, advance.row = advance.row, -1
                self._states.pool.release(row)
                continue
            generated, characters = generated + used, characters + told
            self._swap(advance)
            stream.steps += advance.consumed + used - 1
            stream.pending = advance.tokens[used - 1]
            if ending is not None:
                stopped.append((stream, ending))
                continue
            self._scheduler.decode(stream)
            if stream.checkpoint:  # what follows is told after it
                continue
            if stream.checkpoint_due:
                marked.append(stream)
            elif stream.job.stream and now - stream.told_at >= interval:
                self._outbox.tell(stream.job, stream.index, stream.tell(now))
        for stream, _ in batch.inputs:
            if not stream.remaining and not stream.samples:
                stopped.append((stream, stream.ending or LENGTH))
        for job, problem in failed.items():
            fail(job, problem)
        stopped = [(stream, ending) for stream, ending in stopped if stream.job not in failed]
        self._stop(stopped)
        marked = [stream for stream in marked if stream.job not in failed]
        self._checkpoints.begin(marked, now, self._states.spare(self._scheduler.admitted))
        if generated:
            self._metrics.generated(generated, characters)

    def stop(self, job: Job, ending: Ending) -> None:
        """End the completions of a job where they are; their last results are told as always."""
        self._stop([(stream, ending) for stream in self._scheduler.decoding(job)])

    def _stop(self, stopped: Sequence[Stopped]) -> None:
        for stream, _ in stopped:
            self._scheduler.retire(stream)
        self._departures.begin(stopped)

    def _write(self, advance: Advance) -> tuple[int, Ending | None, int]:
        """Assemble what was sampled; an end inside it takes the state back to the end."""
        stream = advance.stream
        used, ending, told = stream.write(advance.tokens, advance.logprobs)
        if used < len(advance.tokens) and (ending is None or stream.job.keep is not Keep.NOTHING):
            self._stepper.replay(stream, advance.tokens[: used - 1], advance.row)
            self._metrics.replayed()
        return used, ending, told

    def tell_departed(self, fail: Callable[[Job, ServeError], None]) -> None:
        """Tell the checkpoints and last results whose states are there.

        fail: called with a job of whose last state nothing came.
        """
        for stream, piece in self._checkpoints.ended():
            self._outbox.tell(stream.job, stream.index, piece)
        for departure in self._departures.ended():
            try:
                self._tell(departure)
            except faults() as error:
                self._departures.undo(departure)
                fail(departure.stream.job, trouble(error))

    def _tell(self, departure: Departure) -> None:
        if departure.error is not None:
            raise departure.error
        stream = departure.stream
        result = stream.finish(departure.row, departure.ending)
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
