"""Streams at rest as the engine keeps them: rows of a pool, and under pressure host memory."""

from collections.abc import Callable, Sequence

from bench.gpu_context import Bench
from sruserve.model.state import StateLayout
from sruserve.server.engine.lanes import lane_of
from sruserve.server.engine.moves import Moves
from sruserve.server.engine.pool import HostRows, StatePool
from sruserve.server.engine.residents import Resident, Residents

Step = Callable[[Sequence[int], Sequence[int]], object]


class Keeper:
    """The engine's own parts, without its jobs.

    on_device, on_host: states that fit there; what a batch needs for its steps comes on top.
    """

    def __init__(
        self, bench: Bench, state_width: int, on_device: int, on_host: int, batch: int
    ) -> None:
        layout = StateLayout([("c", (state_width,))])
        lane = lane_of(bench.device)
        self.pool = StatePool(on_device + 4 * batch, layout, bench.device)
        self._moves = Moves(self.pool, lane)
        host = HostRows(on_host + 4 * batch if on_host else 0, state_width, lane.allocate)
        self.residents = Residents(self.pool, self._moves, host, reserve=2 * batch)
        self._batch = batch

    def begin(self, count: int) -> list[Resident]:
        """New states of zeros, at most a batch of them."""
        self._make_room(count)
        self.residents.promise(count)
        return [self.residents.keep(row) for row in self.pool.acquire(count)]

    def go_on(self, streams: Sequence[Resident], step: Step) -> list[Resident]:
        """Continue kept states, which are dropped for those that they become.

        step: called with the rows to read and the rows to write.
        """
        away = [resident for resident in streams if resident.row < 0]
        here = [resident for resident in streams if resident.row >= 0]
        for resident in here:
            self.residents.read(resident)
        self._make_room(len(streams) + len(away))
        rows: dict[Resident, int] = {}
        for first in range(0, len(away), self._moves.most):
            part = away[first : first + self._moves.most]
            taken = self.pool.acquire(len(part))
            self.residents.fetch(part, taken).join()
            rows |= zip(part, taken, strict=True)
        target = self.pool.acquire(len(streams))
        self.residents.promise(len(streams))
        # For the next batch, beside this one's step.
        self.residents.spill(2 * self._batch - self.pool.free)
        step([rows.get(resident, resident.row) for resident in streams], target)
        kept = [self.residents.keep(row) for row in target]
        for resident in here:
            self.residents.unread(resident)
        for row in rows.values():
            self._moves.release(row)
        for resident in streams:
            self.residents.drop(resident)
        self._moves.poll()
        return kept

    def _make_room(self, rows: int) -> None:
        self._moves.poll()
        while self.pool.free < rows:
            before = self.pool.free
            self.residents.spill(rows - before)
            self._moves.finish()
            if self.pool.free == before:
                raise RuntimeError(f"{rows} rows wanted, {before} free, and none can be spilled")
