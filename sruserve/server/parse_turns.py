"""Share each turn of the event loop among connections whose bytes or requests wait."""

import asyncio
from collections import OrderedDict
from typing import Protocol

# The cost of the parsing in one turn, about a byte of the dearest kind: of what has just come, so
# that short requests do not wait, and of what waits, a millisecond at most. An answer takes several
# turns, and each lasts as long as all that is done in it.
_FRESH_COST = 16 << 10
_WAITING_COST = 4 << 10
# Of a request, or a message of a socket, that waited behind another one of its connection: to
# answer it takes some hundred microseconds.
REQUEST_COST = 1 << 10


class Parser(Protocol):
    """A connection with unparsed bytes, or with requests behind the one that is answered."""

    def parse_more(self) -> None:
        """Parse one piece or begin one request, spend its cost, and wait again for more."""
        ...


class ParseTurns:
    """Connections parse at once while something is left, and else in the order of their waiting.

    left: what the parsing may still cost before the event loop runs its other callbacks.
    """

    def __init__(self) -> None:
        self.left = _FRESH_COST + _WAITING_COST
        self._waiting: OrderedDict[Parser, None] = OrderedDict()
        self._scheduled = False

    def spend(self, cost: int) -> None:
        """Something was parsed."""
        self.left -= cost
        if self.left <= _FRESH_COST:
            self._schedule()

    def wait(self, parser: Parser) -> None:
        """Let a connection go on after those that wait already."""
        self._waiting[parser] = None
        self._schedule()

    def forget(self, parser: Parser) -> None:
        """The connection is closed."""
        self._waiting.pop(parser, None)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._scheduled, self.left = False, _FRESH_COST + _WAITING_COST
        try:
            while self._waiting and self.left > _FRESH_COST:
                parser, _ = self._waiting.popitem(last=False)
                parser.parse_more()
        finally:
            if self._waiting:
                self._schedule()
