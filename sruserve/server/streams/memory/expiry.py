"""The times at which idle streams expire: one heap of moments, no timer for each."""

import heapq
import math
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K")

_PER_SECOND = 16  # moments; all keys that are due between two moments are taken together
_SPARE = 64


class Expiry(Generic[K]):
    """Keys by the time at which they are due. Moments without keys leave the heap later."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._keys: dict[int, dict[K, None]] = {}  # of each moment
        self._heap: list[int] = []  # moments

    def __len__(self) -> int:
        return len(self._due)

    def put(self, key: K, at: float) -> None:
        """Set the time at which a key is due, instead of an earlier one."""
        self.remove(key)
        self._due[key] = at
        moment = _moment(at)
        keys = self._keys.get(moment)
        if keys is None:
            keys = self._keys[moment] = {}
            self._push(moment)
        keys[key] = None

    def remove(self, key: K) -> None:
        """Remove a key, unless it is unknown."""
        at = self._due.pop(key, None)
        if at is None:
            return
        keys = self._keys[moment := _moment(at)]
        del keys[key]
        if not keys:
            del self._keys[moment]

    def remaining_seconds(self, key: K, now: float) -> float:
        """Seconds until a key is due."""
        return self._due[key] - now

    def is_due(self, key: K, now: float) -> bool:
        """Whether a key is due. `take` may return it up to one moment later."""
        at = self._due.get(key)
        return at is not None and at <= now

    def take(self, now: float, limit: int) -> list[K]:
        """Remove and return the earliest keys whose moment has passed, at most `limit`."""
        taken: list[K] = []
        while len(taken) < limit and self._heap and self._heap[0] <= now * _PER_SECOND:
            keys = self._keys.get(self._heap[0])
            if keys is None:
                heapq.heappop(self._heap)
                continue
            first = list(islice(keys, limit - len(taken)))
            for key in first:
                self.remove(key)
            taken += first
        return taken

    def _push(self, moment: int) -> None:
        heapq.heappush(self._heap, moment)
        if len(self._heap) > 2 * len(self._keys) + _SPARE:
            self._heap = list(self._keys)
            heapq.heapify(self._heap)


def _moment(at: float) -> int:
    return math.ceil(at * _PER_SECOND)
