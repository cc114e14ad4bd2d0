"""Idle streams in the engine's own state cache: rows of a pool, and host memory under pressure."""

from collections.abc import Callable, Sequence

from bench.gpu.context import Bench
from sruserve.model.state import StateLayout
from sruserve.server.engine.state_cache.cache import CachedState, StateCache
from sruserve.server.engine.state_cache.copy_stream import copy_stream_for
from sruserve.server.engine.state_cache.pool import HostRows, StatePool
from sruserve.server.engine.state_cache.transfers import TransferQueue

Step = Callable[[Sequence[int], Sequence[int]], object]


class CachedStreams:
    """The engine's pool, cache and transfers, without its jobs.

    on_device, on_host: number of states for which there is room, in addition to a batch's steps.
    """

    def __init__(
        self, bench: Bench, state_width: int, on_device: int, on_host: int, batch: int
    ) -> None:
        layout = StateLayout([("c", (state_width,))])
        copy_stream = copy_stream_for(bench.device)
        self.pool = StatePool(on_device + 4 * batch, layout, bench.device)
        self._transfers = TransferQueue(self.pool, copy_stream)
        host = HostRows(on_host + 4 * batch if on_host else 0, state_width, copy_stream.allocate)
        self.cache = StateCache(self.pool, self._transfers, host, reserve=2 * batch)
        self._batch = batch

    def create(self, count: int) -> list[CachedState]:
        """Create states of zeros, at most one batch."""
        self._make_room(count)
        self.cache.reserve(count)
        return [self.cache.insert(row) for row in self.pool.acquire(count)]

    def advance(self, states: Sequence[CachedState], step: Step) -> list[CachedState]:
        """Continue cached states; frees them and returns the new ones.

        step: called with the rows to read and the rows to write.
        """
        on_host = [state for state in states if state.row < 0]
        on_device = [state for state in states if state.row >= 0]
        for state in on_device:
            self.cache.pin(state)
        self._make_room(len(states) + len(on_host))
        rows: dict[CachedState, int] = {}
        for first in range(0, len(on_host), self._transfers.max_rows):
            part = on_host[first : first + self._transfers.max_rows]
            pool_rows = self.pool.acquire(len(part))
            self.cache.load(part, pool_rows).wait_event()
            rows |= zip(part, pool_rows, strict=True)
        target = self.pool.acquire(len(states))
        self.cache.reserve(len(states))
        # Make room for the next batch while this one's step runs.
        self.cache.offload(2 * self._batch - self.pool.free)
        step([rows.get(state, state.row) for state in states], target)
        advanced = [self.cache.insert(row) for row in target]
        for state in on_device:
            self.cache.unpin(state)
        for row in rows.values():
            self._transfers.release(row)
        for state in states:
            self.cache.free(state)
        self._transfers.poll()
        return advanced

    def _make_room(self, rows: int) -> None:
        self._transfers.poll()
        while self.pool.free < rows:
            before = self.pool.free
            self.cache.offload(rows - before)
            self._transfers.synchronize()
            if self.pool.free == before:
                raise RuntimeError(
                    f"{rows} pool rows are needed, {before} are free, and no state can be offloaded"
                )
