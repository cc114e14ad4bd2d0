"""A semaphore that serves waiters in turns of their owners, so that no owner starves another."""

import sys
from asyncio import Future, get_running_loop
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

_Places = OrderedDict[Future[None], None]


class FairSemaphore:
    """A number of places. Waiting owners take turns, and so do the parts of each owner.

    The waiters of one part keep their order. A waiter without an owner (None) is an owner of its
    own.

    share: the largest number of places of one owner; None: all of them.
    """

    def __init__(self, places: int, share: int | None = None) -> None:
        self._free, self._share = places, sys.maxsize if share is None else share
        self._used: defaultdict[Hashable, int] = defaultdict(int)  # places of each owner
        # The waiters of each part of each owner; those whose turn is next are first.
        self._waiting: OrderedDict[Hashable, OrderedDict[Hashable, _Places]] = OrderedDict()

    async def acquire(self, owner: Hashable, part: Hashable = None) -> None:
        """Wait for a place. A waiter that is cancelled takes none."""
        if self.acquire_now(owner):
            return
        place: Future[None] = get_running_loop().create_future()
        turn = place if owner is None else owner
        parts = self._waiting.setdefault(turn, OrderedDict())
        parts.setdefault(part, OrderedDict())[place] = None
        try:
            await place
        except BaseException:
            if place.done() and not place.cancelled():  # it was granted just before
                self.release(owner)
            else:
                self._forget(place, turn, part)
            raise

    def _forget(self, place: Future[None], turn: Hashable, part: Hashable) -> None:
        """Remove a waiter, unless its turn came just before."""
        parts = self._waiting.get(turn, OrderedDict())
        places = parts.get(part, OrderedDict())
        places.pop(place, None)
        if not places:
            parts.pop(part, None)
        if not parts:
            self._waiting.pop(turn, None)

    def acquire_now(self, owner: Hashable) -> bool:
        """Take a place if one is free for this owner; returns whether it did."""
        if not self._free or (owner is not None and self._used.get(owner, 0) >= self._share):
            return False
        self._free -= 1
        self._used[owner] += 1
        return True

    def release(self, owner: Hashable) -> None:
        """Release a place of an owner, and grant the free places to the next waiters."""
        self._free += 1
        self._used[owner] -= 1
        if not self._used[owner]:
            del self._used[owner]
        while self._free and self._waiting:
            eligible = (other for other in self._waiting if self._used.get(other, 0) < self._share)
            if (next_owner := next(eligible, None)) is None:
                return
            parts = self._waiting.pop(next_owner)
            part, places = parts.popitem(last=False)
            place, _ = places.popitem(last=False)
            if places:
                parts[part] = places  # after the other parts
            if parts:
                self._waiting[next_owner] = parts  # after the other owners
            if not place.done():
                self._free -= 1
                self._used[None if next_owner is place else next_owner] += 1
                place.set_result(None)

    @asynccontextmanager
    async def place(self, owner: Hashable) -> AsyncIterator[None]:
        """Wait for a place, and hold it while the block runs."""
        await self.acquire(owner)
        try:
            yield
        finally:
            self.release(owner)
