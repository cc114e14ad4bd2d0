"""When which stream has been idle for too long: one heap, no timer for each."""

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")

_SPARE = 64


class Expiry(Generic[K]):
    """Keys by the time at which they are due. What was put off or removed leaves the heap later."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._pushed = 0  # so that equal times never compare keys

    def __len__(self) -> int:
        return len(self._due)

    def put(self, key: K, at: float) -> None:
        """Let a key be due at a time, whatever was said of it before."""
        self._due[key] = at
        self._push(key, at)
        if len(self._heap) > 2 * len(self._due) + _SPARE:
            self._heap = [(time, i, each) for i, (each, time) in enumerate(self._due.items())]
            heapq.heapify(self._heap)

    def remove(self, key: K) -> None:
        """A key is never due, unless it is put again."""
        self._due.pop(key, None)

    def left(self, key: K, now: float) -> float:
        """How long until a key is due."""
        return self._due[key] - now

    def is_due(self, key: K, now: float) -> bool:
        """Whether `take` would find a key."""
        at = self._due.get(key)
        return at is not None and at <= now

    def take(self, now: float) -> Iterator[K]:
        """Remove the keys that are due, the earliest first."""
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == at:
                del self._due[key]
                yield key

    def _push(self, key: K, at: float) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at, self._pushed, key))
