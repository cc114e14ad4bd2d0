"""Share the parsing of each event-loop turn among the connections with waiting bytes."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol

# The maximum cost of the parsing in one turn; a unit is about a byte of the most expensive kind.
# New bytes have their own share, so that short requests do not wait. Waiting bytes take at most a
# millisecond, because each answer needs several turns of the event loop.
_FRESH_COST = 32 << 10
_WAITING_COST = 4 << 10
# Waiting bytes pause if requests of other owners have just arrived.
_BUSY_SECONDS, _PAUSE_SECONDS = 0.02, 0.004
# Of a request, or a message of a WebSocket, that waited for an earlier one of its connection: an
# answer takes some hundred microseconds.
REQUEST_COST = 1 << 10


class Parser(Protocol):
    """A connection with unparsed bytes or queued requests."""

    @property
    def owner(self) -> Hashable:
        """The owner of the connection: a tenant, or the clients of an address."""
        ...

    def parse_more(self) -> None:
        """Parse one piece or begin one request, spend its cost, and wait again for the rest."""
        ...


class ParseTurns:
    """Connections parse at once while budget is left, and otherwise in turns of their owners.

    The connections of one owner take turns in the order of their waiting. An owner's new requests
    do not pause its own waiting bytes.

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
        self._waiting: OrderedDict[Hashable, OrderedDict[Parser, None]] = OrderedDict()
        self._owners: dict[Parser, Hashable] = {}  # as of the beginning of the wait
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

    def wait(self, parser: Parser) -> None:
        """Queue a connection after the waiting connections of its owner."""
        if parser not in self._owners:
            owner = self._owners[parser] = parser.owner
            self._waiting.setdefault(owner, OrderedDict())[parser] = None
        self._schedule()

    def forget(self, parser: Parser) -> None:
        """Remove a connection from the queue."""
        if parser in self._owners:
            owner = self._owners.pop(parser)
            del self._waiting[owner][parser]
            if not self._waiting[owner]:
                del self._waiting[owner]

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
                owner, parsers = next(iter(self._waiting.items()))
                parser = next(iter(parsers))
                self._waiting.move_to_end(owner)
                self.forget(parser)
                parser.parse_more()
        finally:
            self._parses_waiting = False
            if self._waiting:
                self._pause_or_schedule()

    def _pause_or_schedule(self) -> None:
        """Pause if requests of owners without waiting bytes have just arrived, else schedule."""
        until = self._others_until if self._newest in self._waiting else self._newest_until
        if self._clock() < until:
            self._paused = True
            asyncio.get_running_loop().call_later(self._pause_seconds, self._resume)
        else:
            self._schedule()

    def _resume(self) -> None:
        self._paused = False
        self._schedule()
