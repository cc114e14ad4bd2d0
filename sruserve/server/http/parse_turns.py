"""Share each turn of the event loop among connections whose bytes or requests wait."""

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from typing import Protocol

# The cost of the parsing in one turn, about a byte of the dearest kind: of what has just come, so
# that short requests do not wait, and of what waits, a millisecond at most. An answer takes several
# turns, and each lasts as long as all that is done in it.
_FRESH_COST = 16 << 10
_WAITING_COST = 4 << 10
# Where requests of others have come within a moment, what waits goes on after a pause only.
_BUSY_SECONDS, _PAUSE_SECONDS = 0.02, 0.004
# Of a request, or a message of a socket, that waited behind another one of its connection: to
# answer it takes some hundred microseconds.
REQUEST_COST = 1 << 10


class Parser(Protocol):
    """A connection with unparsed bytes, or with requests behind the one that is answered."""

    @property
    def owner(self) -> Hashable:
        """Whose connection it is now: a tenant's, or of all clients of an address."""
        ...

    def parse_more(self) -> None:
        """Parse one piece or begin one request, spend its cost, and wait again for more."""
        ...


class ParseTurns:
    """Connections parse at once while something is left, and else in turns of their owners.

    Those of one owner go on in the order of their waiting. What one owner sends at once does not
    make its own bytes pause that wait.

    busy_seconds, pause_seconds: while the first pass after requests of others, waiting bytes are
        parsed after a pause of the second.
    left: what the parsing may still cost before the event loop runs its other callbacks.
    """

    def __init__(
        self, busy_seconds: float = _BUSY_SECONDS, pause_seconds: float = _PAUSE_SECONDS
    ) -> None:
        self._busy_seconds, self._pause_seconds = busy_seconds, pause_seconds
        self.left = _FRESH_COST + _WAITING_COST
        self._waiting: OrderedDict[Hashable, OrderedDict[Parser, None]] = OrderedDict()
        self._owners: dict[Parser, Hashable] = {}  # as they were when the waiting began
        self._scheduled = self._goes_on = self._pauses = False
        # Whose bytes came last, and until when these and those of others make what waits pause.
        self._newest: Hashable = None
        self._newest_until = self._others_until = 0.0

    def spend(self, cost: int, owner: Hashable) -> None:
        """Something was parsed for an owner."""
        self.left -= cost
        if not self._goes_on:  # it has just come
            if owner != self._newest:
                self._newest, self._others_until = owner, self._newest_until
            self._newest_until = asyncio.get_running_loop().time() + self._busy_seconds
        if self.left <= _FRESH_COST:
            self._schedule()

    def wait(self, parser: Parser) -> None:
        """Let a connection go on after those of its owner that wait already."""
        if parser not in self._owners:
            owner = self._owners[parser] = parser.owner
            self._waiting.setdefault(owner, OrderedDict())[parser] = None
        self._schedule()

    def forget(self, parser: Parser) -> None:
        """The connection waits no more."""
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
        self._scheduled, self.left = False, _FRESH_COST + _WAITING_COST
        if self._pauses:
            return
        self._goes_on = True
        try:
            while self._waiting and self.left > _FRESH_COST:
                owner, parsers = next(iter(self._waiting.items()))
                parser = next(iter(parsers))
                self._waiting.move_to_end(owner)
                self.forget(parser)
                parser.parse_more()
        finally:
            self._goes_on = False
            if self._waiting:
                self._pause_or_schedule()

    def _pause_or_schedule(self) -> None:
        """Go on after a pause if the requests of others than those who wait have just come."""
        loop = asyncio.get_running_loop()
        until = self._others_until if self._newest in self._waiting else self._newest_until
        if loop.time() < until:
            self._pauses = True
            loop.call_later(self._pause_seconds, self._resume)
        else:
            self._schedule()

    def _resume(self) -> None:
        self._pauses = False
        self._schedule()
