"""A semaphore whose owners take turns, so that none of them keeps the others waiting."""

from asyncio import Future, get_running_loop
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable


class Places:
    """A number of places. One owner has at most half of them; waiting owners take turns."""

    def __init__(self, count: int) -> None:
        self._free, self._share = count, count // 2
        self._taken: Counter[Hashable] = Counter()
        self._waiting: OrderedDict[Hashable, deque[Future[None]]] = OrderedDict()

    async def take(self, owner: Hashable) -> None:
        """Wait for a place and take it for an owner. A cancelled waiter is skipped."""
        if self._free and self._taken[owner] < self._share:
            self._put(owner, 1)
            return
        place: Future[None] = get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(place)
        try:
            await place
        except BaseException:
            if place.done() and not place.cancelled():
                self.give_back(owner)  # which it got just before
            raise

    def give_back(self, owner: Hashable) -> None:
        """Give a place back, and pass the free places on."""
        self._put(owner, -1)
        while self._free:
            eligible = (other for other in self._waiting if self._taken[other] < self._share)
            if (chosen := next(eligible, None)) is None:
                return
            places = self._waiting.pop(chosen)
            place = places.popleft()
            if places:
                self._waiting[chosen] = places  # after the other owners
            if not place.done():
                self._put(chosen, 1)
                place.set_result(None)

    def _put(self, owner: Hashable, amount: int) -> None:
        self._free -= amount
        self._taken[owner] += amount
        if not self._taken[owner]:
            del self._taken[owner]
