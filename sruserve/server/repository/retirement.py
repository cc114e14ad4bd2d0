"""The end of versions that are no longer served: their requests finish, then their engines stop."""

import asyncio
import logging
from collections.abc import Callable

from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.repository.served import Served

log = logging.getLogger("sruserve.server")

_POLL_SECONDS = 0.01  # between two looks at an engine that is stopping


class Retirement:
    """Stops engines. Requests that hold a model keep its engine running.

    drain_seconds: the limit of an engine's last jobs.
    on_end: called with each engine that has ended while the server runs.
    on_change: called with a name when the number of its ending versions has changed.
    """

    def __init__(self, drain_seconds: float, on_change: Callable[[str], None]) -> None:
        self.on_end: list[Callable[[JobEngine], None]] = []
        self.closed = False
        self._drain_seconds, self._on_change = drain_seconds, on_change
        self._retiring: dict[asyncio.Task[None], Served] = {}

    @property
    def engines(self) -> list[JobEngine]:
        """The engines that finish their requests."""
        return [served.engine for served in self._retiring.values()]

    def count(self, name: str) -> int:
        """The number of a model's versions that finish their requests."""
        return sum(served.name == name for served in self._retiring.values())

    def retire(self, served: Served) -> None:
        """Stop the engine of a version when its last request is done."""
        task = asyncio.create_task(self._end(served))
        self._retiring[task] = served
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._on_change(self._retiring.pop(task).name)

    async def _end(self, served: Served) -> None:
        await served.in_flight.wait_idle()
        if not self.closed:
            await stop_engine(served.engine, self._drain_seconds)
            for callback in self.on_end:
                callback(served.engine)
            log.info("version %s of %s is unloaded", served.version, served.name)


async def stop_engine(engine: JobEngine, timeout_seconds: float) -> None:
    """Drain an engine, and wait for its end."""
    engine.drain(timeout_seconds)
    await end_of(engine)


async def end_of(engine: JobEngine) -> None:
    """Wait for an engine without a thread, which the system may refuse while the server stops."""
    while not engine.ended:
        await asyncio.sleep(_POLL_SECONDS)
