"""Rows for states on the device and in host memory. All have one size, so a free list suffices."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from sruserve.kernels.devices import CPU, copy_to_device
from sruserve.model.state import StateLayout

_RETRY_SECONDS = 10.0  # between a failed allocation of host memory and the next attempt
_CHECK_BYTES = 4 << 20  # of the rows that `finite` checks together on a GPU
_CHECK_BYTES_CPU = 512 << 10  # fits into a core's cache
_log = logging.getLogger(__name__)
_CHUNK_BYTES = 4 << 20  # size of one allocation of host memory, made on demand


class PoolFull(RuntimeError):
    """More rows were requested than are free; the scheduler never does that."""


class StatePool:
    """Rows of one packed state each, on the device that the steps run on.

    capacity: number of rows; a sequence in a step holds two, one to read and one to write.
    rows: (capacity, width), float32. On a CPU, a row occupies memory once it is first claimed.
    """

    def __init__(self, capacity: int, layout: StateLayout, device: torch.device = CPU) -> None:
        self.rows = torch.empty(capacity, layout.width, device=device)
        # On a CPU these are the same rows. For a few of them numpy takes 1/20 of torch's time, and
        # torch would release the interpreter lock to other threads.
        self._host_rows = self.rows.numpy() if self.rows.is_cpu else None
        self.width, self.row_bytes = layout.width, layout.nbytes
        self.capacity = capacity
        self._used = 0  # rows from this index on were never claimed
        self._free: list[int] = []
        self._live: set[int] = set()

    def __len__(self) -> int:
        return len(self._live)

    @property
    def free(self) -> int:
        """The number of rows that can be claimed."""
        return self.capacity - len(self._live)

    def acquire(self, count: int, clear: bool = True) -> list[int]:
        """Claim `count` zeroed rows, so that no sequence starts from another's state.

        clear: False for rows of which every number is written before it is read.
        """
        if count > self.free:
            raise PoolFull(f"{count} state rows requested, {self.free} free")
        if not count:
            return []
        reused = min(count, len(self._free))
        first, self._used = self._used, self._used + count - reused
        left = len(self._free) - reused
        claimed = [*self._free[left:][::-1], *range(first, self._used)]
        del self._free[left:]
        try:
            if not clear:
                pass
            elif self._host_rows is not None:
                self._host_rows[claimed] = 0.0
            else:
                self.rows.index_fill_(0, indices(claimed, self.rows.device), 0.0)
        except BaseException:  # for example, no memory for the indices
            self._free += claimed
            raise
        self._live.update(claimed)
        return claimed

    def finite(self, rows: Sequence[int]) -> Iterator[bool]:
        """Whether every number of each row is finite."""
        host_rows = self._host_rows
        check_bytes = _CHECK_BYTES if host_rows is None else _CHECK_BYTES_CPU
        at_a_time = max(1, check_bytes // max(1, self.row_bytes))
        for first in range(0, len(rows), at_a_time):
            checked = rows[first : first + at_a_time]
            if host_rows is not None:
                yield from np.isfinite(host_rows[checked]).all(1).tolist()
            else:
                yield from self.rows[checked].isfinite().all(1).tolist()

    def release(self, row: int) -> None:
        self._live.remove(row)  # KeyError on a double release
        self._free.append(row)

    def release_all(self, rows: Sequence[int]) -> None:
        """Release different rows. Raises KeyError if one is free, and then releases none."""
        released = self._live.intersection(rows)
        if len(released) < len(rows):
            raise KeyError(f"rows that are not in use were released: {sorted(rows)[:9]}")
        self._live -= released
        self._free += rows


class HostRows:
    """Rows of one packed state each in host memory, which grows as they are claimed.

    max_rows: upper limit on the number of rows.
    allocate: allocates memory for (rows, width) float32; for a GPU it should be pinned.
    chunk_bytes: size of one allocation.
    retry_seconds: between a failed allocation and the next attempt, on `clock`.
    """

    def __init__(
        self,
        max_rows: int,
        width: int,
        allocate: Callable[[int, int], Tensor],
        *,
        chunk_bytes: int = _CHUNK_BYTES,
        retry_seconds: float = _RETRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_rows, self._width, self._allocate = max_rows, width, allocate
        self._retry_seconds, self._retry_at, self._clock = retry_seconds, 0.0, clock
        self._per_chunk = max(1, min(max_rows, chunk_bytes // max(1, 4 * width)))
        self._chunks: list[Tensor] = []
        self._used = 0
        self._free: list[int] = []

    def __len__(self) -> int:
        return self._used - len(self._free)

    @property
    def free(self) -> int:
        """The number of rows that can be claimed."""
        return self.capacity - len(self)

    @property
    def capacity(self) -> int:
        """The maximum row count; for a while after a failed allocation, those in memory."""
        if self._clock() < self._retry_at:
            return min(self._max_rows, len(self._chunks) * self._per_chunk)
        return self._max_rows

    def grow(self, rows: int) -> None:
        """Allocate memory until it suffices for `rows` rows. Raises the errors of `allocate`."""
        while len(self._chunks) * self._per_chunk < rows:
            try:
                self._chunks.append(self._allocate(self._per_chunk, self._width))
            except Exception as error:
                self._retry_at = self._clock() + self._retry_seconds
                _log.warning(
                    "no host memory for more than %d idle states: %s", self.capacity, error
                )
                raise

    def acquire(self, count: int) -> list[int]:
        """Claim `count` rows in ascending order, not cleared. Raises the errors of `allocate`."""
        if count > self.free:
            raise PoolFull(f"{count} rows of host memory requested, {self.free} free")
        fresh = max(0, count - len(self._free))
        self.grow(self._used + fresh)
        reused = [self._free.pop() for _ in range(count - fresh)]
        first, self._used = self._used, self._used + fresh
        return sorted([*reused, *range(first, self._used)])

    def release(self, rows: Sequence[int]) -> None:
        self._free += rows

    def __getitem__(self, row: int) -> Tensor:
        return self._chunks[row // self._per_chunk][row % self._per_chunk]

    def copy_rows(
        self, rows: Sequence[int], source: "HostRows", source_rows: Sequence[int]
    ) -> None:
        """Copy rows of other host memory to these rows. The host does it itself, at once."""
        for row, source_row in zip(rows, source_rows, strict=True):
            self[row].copy_(source[source_row])

    def runs(self, rows: Sequence[int]) -> Iterator[tuple[Tensor, int, int]]:
        """Split ascending rows into adjacent runs: (their memory, first index, end index)."""
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
    """Return row numbers as int64 on `device`. The host does not wait for the copy."""
    return copy_to_device(torch.tensor(rows), device)
