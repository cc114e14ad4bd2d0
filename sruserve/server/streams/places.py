"""Places that are taken in turns of their owners, so that no owner's work keeps others' waiting."""

from asyncio import Future, get_running_loop
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable


class Places:
    """So many at a time, at most half of them of one owner; the owners that wait take turns."""

    def __init__(self, count: int) -> None:
        self._free, self._share = count, count // 2
        self._taken: Counter[Hashable] = Counter()
        self._waiting: OrderedDict[Hashable, deque[Future[None]]] = OrderedDict()

    async def take(self, owner: Hashable) -> None:
        """Wait for a place of an owner's; a cancelled waiter is skipped."""
        if self._free and self._taken[owner] < self._share:
            self._put(owner, 1)
            return
        place: Future[None] = get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(place)
        try:
            await place
        except BaseException:
            if place.done() and not place.cancelled():
                self.give_back(owner)  # it has just been this one's turn
            raise

    def give_back(self, owner: Hashable) -> None:
        """Let the next one have a place that was taken."""
        self._put(owner, -1)
        while self._free:
            waiting = (each for each in self._waiting if self._taken[each] < self._share)
            if (chosen := next(waiting, None)) is None:
                return
            places = self._waiting.pop(chosen)
            place = places.popleft()
            if places:
                self._waiting[chosen] = places  # behind the others
            if not place.done():
                self._put(chosen, 1)
                place.set_result(None)

    def _put(self, owner: Hashable, amount: int) -> None:
        self._free -= amount
        self._taken[owner] += amount
        if not self._taken[owner]:
            del self._taken[owner]
