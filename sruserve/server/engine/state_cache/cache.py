"""Cached states of idle sequences: on the device, and under memory pressure on the host."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice

from sruserve.server.engine.state_cache.pool import HostRows, StatePool
from sruserve.server.engine.state_cache.transfers import Transfer, TransferQueue

_BATCH_BYTES = 4 << 20  # size of the states that one transfer offloads


class CacheFull(RuntimeError):
    """The cache has no room for more states; nothing was reserved."""


class CachedState:
    """A state that the cache holds until it is freed. Opaque to its users.

    row: its pool row; -1: the state is in host memory, at `host_row`.
    refcount: jobs and loads that use the state. pins: sequences whose next step reads its row.
    """

    __slots__ = ("dropped", "host_row", "owner", "pins", "refcount", "row")

    def __init__(self, owner: "StateCache", row: int) -> None:
        self.owner, self.row, self.host_row = owner, row, -1
        self.refcount = self.pins = 0
        self.dropped = False


class StateCache:
    """Holds states in pool rows, and offloads the least recently used ones to host memory.

    Used by the engine's thread alone.

    reserve: pool rows that the cache leaves to running sequences.
    """

    def __init__(
        self, pool: StatePool, transfers: TransferQueue, host: HostRows, reserve: int
    ) -> None:
        self._pool, self._transfers, self._host = pool, transfers, host
        self._device_capacity = pool.capacity - reserve
        self._device: dict[CachedState, None] = {}  # least recently used first
        self._offloading = 0
        self._reserved = 0

    @property
    def capacity(self) -> int:
        """The number of states that fit into the cache."""
        return self._device_capacity + self._host.capacity

    @property
    def on_device(self) -> int:
        """The number of states in pool rows, including those that are being offloaded."""
        return len(self._device) + self._offloading

    @property
    def on_host(self) -> int:
        """The number of states in host memory."""
        return len(self._host) - self._offloading

    def reserve(self, count: int) -> None:
        """Reserve room for `count` states, or raise `CacheFull`."""
        occupied = len(self._device) + len(self._host) + self._reserved
        offloaded = min(occupied + count - self._device_capacity, self._host.capacity)
        with suppress(Exception):  # a failure lowers `capacity` for a while
            # Allocated now, the memory cannot be missing when running sequences need the rows.
            self._host.grow(offloaded)
        if occupied + count > self.capacity:
            raise CacheFull(
                f"{occupied} of {self.capacity} places for cached states are in use, and {count} "
                "more are needed"
            )
        self._reserved += count

    def unreserve(self, count: int = 1) -> None:
        """Cancel `count` reservations."""
        self._reserved -= count

    def insert(self, row: int) -> CachedState:
        """Take over a pool row, for which room was reserved. Nothing is copied."""
        cached = CachedState(self, row)
        self._device[cached] = None
        self._reserved -= 1
        return cached

    def free(self, cached: CachedState) -> None:
        """Drop a state. Its current users may still use it; then its memory becomes free."""
        if not cached.dropped:
            cached.dropped = True
            self._free_if_unused(cached)

    def retain(self, cached: CachedState) -> None:
        """Add a reference. The state stays in memory until `release`."""
        cached.refcount += 1

    def release(self, cached: CachedState) -> None:
        cached.refcount -= 1
        self._free_if_unused(cached)

    def pin(self, cached: CachedState) -> None:
        """Keep the state in its row until `unpin`, because a sequence is about to read it."""
        cached.pins += 1
        if cached in self._device:  # now the most recently used
            del self._device[cached]
            self._device[cached] = None

    def unpin(self, cached: CachedState) -> None:
        cached.pins -= 1

    def load(self, cache_entries: Sequence[CachedState], rows: Sequence[int]) -> Transfer:
        """Start copying states from host memory into pool rows. The host rows stay in use."""
        for cached in cache_entries:
            self.retain(cached)  # first, because what has ended meanwhile is released in `load`
        transfer = self._transfers.load(
            self._host, [cached.host_row for cached in cache_entries], rows
        )

        def release_all() -> None:
            for cached in cache_entries:
                self.release(cached)

        self._transfers.on_done(transfer, release_all)
        return transfer

    def offload(self, rows: int) -> None:
        """Start moving about `rows` states to the host, as far as it has room."""
        rows -= self._offloading
        if rows <= 0:
            return
        batch = max(1, min(self._transfers.max_rows, _BATCH_BYTES // max(1, self._pool.row_bytes)))
        # Even if fewer are wanted, a batch (at most a quarter) makes room for the next sequence.
        count = min(max(rows, min(batch, len(self._device) // 4)), self._host.free)
        chosen = list(islice((cached for cached in self._device if not cached.pins), count))
        for first in range(0, len(chosen), batch):
            if not self._offload(chosen[first : first + batch]):
                return

    def _offload(self, cache_entries: list[CachedState]) -> bool:
        try:
            host_rows = self._host.acquire(len(cache_entries))
        except Exception:  # the machine has less memory than allowed: use the rows that exist
            cache_entries = cache_entries[: self._host.free]
            if not cache_entries:
                return False
            host_rows = self._host.acquire(len(cache_entries))
        for cached in cache_entries:
            del self._device[cached]
        self._offloading += len(cache_entries)
        transfer = self._transfers.offload(
            [cached.row for cached in cache_entries], self._host, host_rows
        )
        self._transfers.on_done(
            transfer, self._offload_callback(transfer, cache_entries, host_rows)
        )
        return transfer.error is None

    def _offload_callback(
        self, transfer: Transfer, cache_entries: list[CachedState], host_rows: list[int]
    ) -> Callable[[], None]:
        def complete() -> None:
            self._offloading -= len(cache_entries)
            for cached, host_row in zip(cache_entries, host_rows, strict=True):
                if cached.pins or transfer.error is not None:
                    self._host.release([host_row])
                    self._device[cached] = None
                else:
                    self._transfers.release(cached.row)
                    cached.row, cached.host_row = -1, host_row
                self._free_if_unused(cached)

        return complete

    def _free_if_unused(self, cached: CachedState) -> None:
        """Free the memory of a dropped state without users, unless it is being offloaded."""
        if not cached.dropped or cached.refcount:
            return
        if cached in self._device:
            del self._device[cached]
            self._transfers.release(cached.row)
        elif cached.host_row >= 0:
            self._host.release([cached.host_row])
        else:  # it is being offloaded: the callback tries again
            return
        cached.row = cached.host_row = -1
