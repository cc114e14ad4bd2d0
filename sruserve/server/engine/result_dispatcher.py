"""Deliver settled results in order, each on the event loop of its job."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence

from sruserve.server.engine.job import Job
from sruserve.server.engine.results import Result
from sruserve.server.engine.state_cache.cache import CachedState
from sruserve.server.errors import ServeError, faults

_log = logging.getLogger(__name__)


class ResultDispatcher:
    """Collects results and outcomes on the engine's thread; `flush` sends them together.

    drop: called, from any thread, with every cached state whose result could not be delivered.
    """

    def __init__(self, drop: Callable[[CachedState], None]) -> None:
        self._drop = drop
        self._messages: defaultdict[asyncio.AbstractEventLoop, list[_Message]] = defaultdict(list)

    def add_result(self, job: Job, index: int, result: Result, *, last: bool = False) -> None:
        """Add a result of one item; `last`: the job is done with it."""
        self._add(_Message(job, index, result, last))

    def add_results(self, job: Job, results: Sequence[Result]) -> None:
        """Add the results of all items of a job, which is done with them; none has a state."""
        self._add(_Message(job, results=results))

    def add_error(self, job: Job, error: ServeError | None) -> None:
        """End a job early. error: None if nobody waits for it any more."""
        self._add(_Message(job, error=error))

    def flush(self, here: asyncio.AbstractEventLoop | None = None) -> None:
        """Send all messages to their event loops, in one call to each loop.

        here: the event loop that runs this; its messages are delivered at once.
        """
        if not self._messages:
            return
        by_loop, self._messages = self._messages, defaultdict(list)
        for loop, messages in by_loop.items():
            if loop is here:
                self._deliver(messages)
                continue
            try:
                loop.call_soon_threadsafe(self._deliver, messages)
            except RuntimeError:  # the loop is closed, so no client waits
                _log.debug("results of a closed event loop are dropped")
                for message in messages:
                    self._drop_state(message)

    def _deliver(self, messages: list["_Message"]) -> None:
        """Deliver results in order, and each job's outcome once. Runs on the event loop."""
        for message in messages:
            done = message.job.done
            if done.done():
                self._drop_state(message)
                continue
            try:
                if message.result is not None:
                    message.job.deliver(message.index, message.result)
                if message.results and message.job.deliver_all is not None:
                    message.job.deliver_all(message.results)
                else:
                    for index, result in enumerate(message.results):
                        message.job.deliver(index, result)
                if message.error is not None:
                    done.set_exception(message.error)
                elif message.last:
                    done.set_result(None)
            except faults() as error:
                self._drop_state(message)
                done.set_exception(error)

    def _drop_state(self, message: "_Message") -> None:
        state = None if message.result is None else message.result.state
        if state is not None and isinstance(state.row, CachedState):
            self._drop(state.row)

    def _add(self, message: "_Message") -> None:
        self._messages[message.job.loop].append(message)


class _Message:
    """A result of one item, the results of all items, or what ends a job early."""

    __slots__ = ("error", "index", "job", "last", "result", "results")

    def __init__(
        self,
        job: Job,
        index: int = -1,
        result: Result | None = None,
        last: bool = True,
        error: ServeError | None = None,
        results: Sequence[Result] = (),
    ) -> None:
        self.job, self.index, self.result, self.results = job, index, result, results
        self.last, self.error = last, error
