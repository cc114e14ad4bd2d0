"""The way back: what a step settled, told on the event loop of each job, in order."""

import asyncio
import logging
from collections.abc import Callable

from sruserve.server.engine.jobs import Job, Result
from sruserve.server.engine.residents import Resident
from sruserve.server.errors import ServeError, faults

_log = logging.getLogger(__name__)


class Outbox:
    """Collects results and outcomes on the engine's thread; `send` hands them over at once.

    drop: called with every kept state of which nobody could be told, from any thread.
    """

    def __init__(self, drop: Callable[[Resident], None]) -> None:
        self._drop = drop
        self._notes: dict[asyncio.AbstractEventLoop, list[_Note]] = {}

    def tell(self, job: Job, index: int, result: Result) -> None:
        """A result of one item."""
        self._add(_Note(job, index, result))

    def end(self, job: Job, error: ServeError | None = None) -> None:
        """The outcome of a job, after its last result."""
        self._add(_Note(job, error=error))

    def send(self) -> None:
        """Hand everything to the event loops, in one call to each."""
        notes, self._notes = self._notes, {}
        for loop, mine in notes.items():
            try:
                loop.call_soon_threadsafe(self._deliver, mine)
            except RuntimeError:  # the loop is closed: nobody is there to be told
                _log.debug("results of a closed event loop are dropped")
                for note in mine:
                    self._take_back(note)

    def _deliver(self, notes: list["_Note"]) -> None:
        """On the event loop: tell results in order; every job's outcome is told once."""
        for note in notes:
            done = note.job.done
            if done.done():
                self._take_back(note)
                continue
            try:
                if note.result is not None:
                    note.job.deliver(note.index, note.result)
                elif note.error is not None:
                    done.set_exception(note.error)
                else:
                    done.set_result(None)
            except faults() as error:
                self._take_back(note)
                done.set_exception(error)

    def _take_back(self, note: "_Note") -> None:
        state = None if note.result is None else note.result.state
        if state is not None and isinstance(state.row, Resident):
            self._drop(state.row)

    def _add(self, note: "_Note") -> None:
        self._notes.setdefault(note.job.loop, []).append(note)


class _Note:
    """A result of one item, or (without one) the outcome of its job."""

    __slots__ = ("error", "index", "job", "result")

    def __init__(
        self,
        job: Job,
        index: int = -1,
        result: Result | None = None,
        error: ServeError | None = None,
    ) -> None:
        self.job, self.index, self.result, self.error = job, index, result, error
