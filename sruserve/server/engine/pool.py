"""Where states lie: fixed rows make a free list enough, on the device and in host memory."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from sruserve.kernels.devices import CPU, send
from sruserve.model.state import StateLayout

_PATIENCE_SECONDS = 10.0  # until memory that could not be had is asked for again
_log = logging.getLogger(__name__)
_CHUNK_BYTES = 4 << 20  # host memory is taken in pieces of this size, when it is needed


class PoolFull(RuntimeError):
    """More rows were asked for than there are; the scheduler never does that."""


class StatePool:
    """Rows of one packed state each, on the device that the steps run on.

    capacity: rows; a stream in a step holds two, the one it reads and the one it writes.
    rows: (capacity, width), float32; they take a CPU's memory when they are first handed out.
    """

    def __init__(self, capacity: int, layout: StateLayout, device: torch.device = CPU) -> None:
        self.rows = torch.empty(capacity, layout.width, device=device)
        self.width, self.row_bytes = layout.width, layout.nbytes
        self.capacity = capacity
        self._used = 0  # rows from this one on were never handed out
        self._free: list[int] = []
        self._live: set[int] = set()

    def __len__(self) -> int:
        return len(self._live)

    @property
    def free(self) -> int:
        """Rows that may be claimed."""
        return self.capacity - len(self._live)

    def acquire(self, count: int) -> list[int]:
        """Claim `count` rows, cleared: no stream ever starts from another's state."""
        if count > self.free:
            raise PoolFull(f"{count} state rows wanted, {self.free} free")
        if not count:
            return []
        again = min(count, len(self._free))
        first, self._used = self._used, self._used + count - again
        taken = [*(self._free.pop() for _ in range(again)), *range(first, self._used)]
        try:
            if self.rows.is_cpu:  # torch would let other threads have the interpreter meanwhile
                self.rows.numpy()[taken] = 0.0
            else:
                self.rows.index_fill_(0, indices(taken, self.rows.device), 0.0)
        except BaseException:  # out of memory for the indices, say
            self._free += taken
            raise
        self._live.update(taken)
        return taken

    def release(self, row: int) -> None:
        self._live.remove(row)  # KeyError on a double release
        self._free.append(row)


class HostRows:
    """Rows of one packed state each in host memory, which grows as they are claimed.

    most: rows that there may be at most.
    allocate: gives memory for (rows, width) float32; a GPU wants it pinned.
    """

    def __init__(self, most: int, width: int, allocate: Callable[[int, int], Tensor]) -> None:
        self._allowed, self._width, self._allocate = most, width, allocate
        self._try_again_at = 0.0
        self._per_chunk = max(1, min(most, _CHUNK_BYTES // max(1, 4 * width)))
        self._chunks: list[Tensor] = []
        self._used = 0
        self._free: list[int] = []

    def __len__(self) -> int:
        return self._used - len(self._free)

    @property
    def free(self) -> int:
        """Rows that may be claimed."""
        return self.most - len(self)

    @property
    def most(self) -> int:
        """Rows that there may be; for a while after an allocation has failed, those there are."""
        if time.monotonic() < self._try_again_at:
            return min(self._allowed, len(self._chunks) * self._per_chunk)
        return self._allowed

    def grow(self, rows: int) -> None:
        """Have memory for `rows` rows. Raises what the allocation raises."""
        while len(self._chunks) * self._per_chunk < rows:
            try:
                self._chunks.append(self._allocate(self._per_chunk, self._width))
            except Exception as error:
                self._try_again_at = time.monotonic() + _PATIENCE_SECONDS
                _log.warning("no host memory for more than %d idle states: %s", self.most, error)
                raise

    def acquire(self, count: int) -> list[int]:
        """Claim `count` rows, rising; what is in them is old. Raises what the allocation raises."""
        if count > self.free:
            raise PoolFull(f"{count} rows of host memory wanted, {self.free} free")
        fresh = max(0, count - len(self._free))
        self.grow(self._used + fresh)
        again = [self._free.pop() for _ in range(count - fresh)]
        first, self._used = self._used, self._used + fresh
        return sorted([*again, *range(first, self._used)])

    def release(self, rows: Sequence[int]) -> None:
        self._free += rows

    def __getitem__(self, row: int) -> Tensor:
        return self._chunks[row // self._per_chunk][row % self._per_chunk]

    def runs(self, rows: Sequence[int]) -> Iterator[tuple[Tensor, int, int]]:
        """Cut rising rows where they are not adjacent: (their memory, first index, end index)."""
        first = 0
        for end in range(1, len(rows) + 1):
            if (
                end == len(rows)
                or rows[end] != rows[end - 1] + 1
                or not rows[end] % self._per_chunk
            ):
                begin = rows[first] % self._per_chunk
                chunk = self._chunks[rows[first] // self._per_chunk]
                yield chunk[begin : begin + end - first], first, end
                first = end


def indices(rows: Sequence[int], device: torch.device) -> Tensor:
    """Row numbers, int64, on `device`; the host does not wait until they are there."""
    return send(torch.tensor(rows), device)
