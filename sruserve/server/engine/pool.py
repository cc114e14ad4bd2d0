"""The recurrent states of live streams: fixed rows make a free list enough."""

import torch

from sruserve.model.state import StateLayout


class PoolFull(RuntimeError):
    """More rows were asked for than there are; the scheduler never does that."""


class StatePool:
    """Rows of one packed state each.

    capacity: rows; a stream in a step holds two, the one it reads and the one it writes.
    """

    def __init__(self, capacity: int, layout: StateLayout) -> None:
        self.rows = layout.allocate(capacity)
        self.row_bytes = layout.nbytes
        self.capacity = capacity
        self._used = 0  # rows from this one on were never handed out
        self._free: list[int] = []
        self._live: set[int] = set()

    def __len__(self) -> int:
        return len(self._live)

    def acquire(self, count: int) -> list[int]:
        """Claim `count` rows, cleared: no stream ever starts from another's state."""
        free = self.capacity - len(self._live)
        if count > free:
            raise PoolFull(f"{count} state rows wanted, {free} free")
        if not count:
            return []
        again = min(count, len(self._free))
        first, self._used = self._used, self._used + count - again
        taken = [*(self._free.pop() for _ in range(again)), *range(first, self._used)]
        self._live.update(taken)
        self.rows.index_fill_(0, torch.tensor(taken), 0.0)
        return taken

    def release(self, row: int) -> None:
        self._live.remove(row)  # KeyError on a double release
        self._free.append(row)
