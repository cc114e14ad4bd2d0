"""Share the parsing of each event-loop turn among the connections with waiting bytes."""

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Protocol

from sruserve.server.http.parse_queue import ParseQueue, Queueable, Waiting

# The maximum cost of the parsing in one turn; a unit is about a byte of the most expensive kind.
# New bytes have their own share, so that short requests do not wait. Waiting bytes take at most a
# millisecond, because each answer needs several turns of the event loop.
_FRESH_COST = 32 << 10
_WAITING_COST = 4 << 10
# Waiting bytes pause if requests of other owners have just arrived.
_BUSY_SECONDS, _PAUSE_SECONDS = 0.02, 0.004
# While work waits: after a longer pause, the processor would wait for it.
_WORK_PAUSE_SECONDS = 0.001
# Of a request, or a message of a WebSocket, that waited for an earlier one of its connection: an
# answer takes some hundred microseconds.
REQUEST_COST = 1 << 10


class Parser(Queueable, Protocol):
    """A connection with unparsed bytes or queued requests."""

    def parse_more(self) -> None:
        """Parse one piece or begin one request, spend its cost, and wait again for the rest."""
        ...

    def abort(self) -> None:
        """Close the connection at once, after a fault."""
        ...


class ParseTurns:
    """Connections parse at once while budget is left, and otherwise in turns of their owners.

    The connections of one owner and kind take turns in the order of their waiting. An owner's new
    requests do not pause its own waiting bytes.

    busy_seconds: the time after a request of another owner in which waiting bytes pause.
    pause_seconds: the length of one pause.
    clock: monotonic seconds.
    budget: the remaining cost before the event loop runs its other callbacks.
    """

    def __init__(
        self,
        busy_seconds: float = _BUSY_SECONDS,
        pause_seconds: float = _PAUSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._busy_seconds, self._pause_seconds = busy_seconds, pause_seconds
        self.budget = _FRESH_COST + _WAITING_COST
        self._waiting, self._work = ParseQueue[Parser](), ParseQueue[_Work]()
        self._scheduled = self._parses_waiting = self._paused = False
        # The owner of the newest bytes, and the end of the pauses that they and others cause.
        self._newest: Hashable = None
        self._newest_until = self._others_until = 0.0

    def spend(self, cost: int, owner: Hashable) -> None:
        """Charge this turn for parsing bytes of an owner."""
        self.budget -= cost
        if not self._parses_waiting:  # the bytes are new
            if owner != self._newest:
                self._newest, self._others_until = owner, self._newest_until
            self._newest_until = self._clock() + self._busy_seconds
        if self.budget <= _FRESH_COST and not self._scheduled:
            self._schedule()

    def take(self, cost: int, owner: Hashable) -> asyncio.Future[None] | None:
        """Charge work of an owner, such as parsing JSON; None: it may begin.

        Long work, and any work while no budget is left, waits for the future. If the future is
        cancelled, nothing is charged.
        """
        if cost <= _WAITING_COST and self.budget > 0:
            self.spend(cost, owner)
            return None
        work = _Work(cost, owner)
        self._work.add(work)
        self._schedule()
        return work.begun

    def wait(self, parser: Parser) -> None:
        """Queue a connection after the waiting connections of its owner and kind."""
        self._waiting.add(parser)
        self._schedule()

    def forget(self, parser: Parser) -> None:
        """Remove a connection from the queue."""
        self._waiting.remove(parser)

    def move(self, parser: Parser) -> None:
        """Queue a waiting connection again, because its owner has changed."""
        if parser in self._waiting:
            self._waiting.remove(parser)
            self._waiting.add(parser)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._scheduled, self.budget = False, _FRESH_COST + _WAITING_COST
        if self._paused:
            return
        self._parses_waiting = True
        try:
            while self._waiting and self.budget > _FRESH_COST:
                parser = self._waiting.pop()
                try:
                    parser.parse_more()
                except BaseException:  # or nothing would parse, answer or close the connection
                    parser.abort()
                    raise
            self._begin_work(self.budget - _WAITING_COST)
        finally:
            self._parses_waiting = False
            if self._waiting or self._work:
                self._pause_or_schedule()

    def _begin_work(self, least: int) -> None:
        """Begin work until the budget is `least` or less."""
        while self._work and self.budget > least:
            work = self._work.pop()
            if not work.begun.done():  # its client is still there
                self.spend(work.cost, work.owner)
                work.begun.set_result(None)

    def _pause_or_schedule(self) -> None:
        """Pause if requests of owners without waiting bytes have just arrived, else schedule."""
        newest_waits = self._waiting.has_owner(self._newest) or self._work.has_owner(self._newest)
        until = self._others_until if newest_waits else self._newest_until
        if self._clock() < until:
            self._paused = True
            seconds = _WORK_PAUSE_SECONDS if self._work else self._pause_seconds
            asyncio.get_running_loop().call_later(seconds, self._resume)
        else:
            self._schedule()

    def _resume(self) -> None:
        self._paused = False
        self._schedule()


class _Work:
    """Work that waits for its turn. begun: resolves when it may begin."""

    def __init__(self, cost: int, owner: Hashable) -> None:
        self.cost, self.owner = cost, owner
        self.waiting = Waiting.SHORT if cost <= _FRESH_COST else Waiting.LONG
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
