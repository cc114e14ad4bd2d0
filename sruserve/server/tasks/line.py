"""A line in which everybody's turn comes, and no owner's turn before another's is over."""

from asyncio import Future, get_running_loop
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from sruserve.server.budget import Budget


class Line:
    """One turn at a time. Owners take turns; those of one owner come in their order.

    Who has no owner (None) is one of its own.

    places: bounds how many may wait, all together and of one owner.
    """

    def __init__(self, places: Budget) -> None:
        self._places = places
        self._waiting: OrderedDict[Hashable, deque[Future[None]]] = OrderedDict()
        self._taken = False

    @asynccontextmanager
    async def turn(self, owner: Hashable) -> AsyncIterator[None]:
        """Wait for a turn, or raise the error of `places`; a cancelled waiter is skipped."""
        with self._places.hold(1, owner):
            if self._taken:
                await self._wait(owner)
            self._taken = True
            try:
                yield
            finally:
                self._next()

    async def _wait(self, owner: Hashable) -> None:
        turn: Future[None] = get_running_loop().create_future()
        self._waiting.setdefault(turn if owner is None else owner, deque()).append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._next()  # it was this one's turn
            raise

    def _next(self) -> None:
        while self._waiting:
            owner, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[owner] = turns  # behind the others
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False
