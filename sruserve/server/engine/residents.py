"""States of idle streams that the engine keeps: on the device, and under pressure on the host."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice

from sruserve.server.engine.moves import Move, Moves
from sruserve.server.engine.pool import HostRows, StatePool

_BATCH_BYTES = 4 << 20  # of states that are spilled together


class ResidentsFull(RuntimeError):
    """There is no room to keep another state; nothing was kept."""


class Resident:
    """A state that the engine keeps, until it is dropped. Opaque to whoever holds it.

    row: its pool row; -1: it is in host memory, at `place`.
    users: jobs that refer to it. readers: streams whose next step reads its row.
    """

    __slots__ = ("dropped", "owner", "place", "readers", "row", "users")

    def __init__(self, owner: "Residents", row: int) -> None:
        self.owner, self.row, self.place = owner, row, -1
        self.users = self.readers = 0
        self.dropped = False


class Residents:
    """Keeps states in pool rows, and the least recently used of them in host memory.

    Used by the engine's thread alone.

    reserve: rows of the pool that running streams can always have.
    """

    def __init__(self, pool: StatePool, moves: Moves, host: HostRows, reserve: int) -> None:
        self._pool, self._moves, self._host = pool, moves, host
        self._kept_at_most = pool.capacity - reserve
        self._device: dict[Resident, None] = {}  # least recently used first
        self._spilling = 0
        self._promised = 0

    @property
    def most(self) -> int:
        """States that can be kept."""
        return self._kept_at_most + self._host.most

    @property
    def on_device(self) -> int:
        """States in pool rows."""
        return len(self._device) + self._spilling

    @property
    def on_host(self) -> int:
        """States in host memory."""
        return len(self._host) - self._spilling

    def promise(self, count: int) -> None:
        """Set room for `count` states aside, or raise `ResidentsFull`."""
        taken = len(self._device) + len(self._host) + self._promised
        spilled = min(taken + count - self._kept_at_most, self._host.most)
        with suppress(Exception):  # then there is less room, as it knows itself
            # Memory that is had now cannot be missing when running streams need the rows.
            self._host.grow(spilled)
        if taken + count > self.most:
            raise ResidentsFull(
                f"{taken} of {self.most} states are kept, and {count} more are wanted"
            )
        self._promised += count

    def forgo(self, count: int = 1) -> None:
        """Give promised room back."""
        self._promised -= count

    def keep(self, row: int) -> Resident:
        """Take over a pool row, for which room was promised. Nothing is copied."""
        resident = Resident(self, row)
        self._device[resident] = None
        self._promised -= 1
        return resident

    def drop(self, resident: Resident) -> None:
        """Forget a state; what uses it still may, and then its memory is free."""
        if not resident.dropped:
            resident.dropped = True
            self._forget_unused(resident)

    def use(self, resident: Resident) -> None:
        """A job refers to it: it stays until `leave`."""
        resident.users += 1

    def leave(self, resident: Resident) -> None:
        resident.users -= 1
        self._forget_unused(resident)

    def read(self, resident: Resident) -> None:
        """A stream is about to read its row, which stays where it is until `unread`."""
        resident.readers += 1
        if resident in self._device:  # now the most recently used
            del self._device[resident]
            self._device[resident] = None

    def unread(self, resident: Resident) -> None:
        resident.readers -= 1

    def fetch(self, residents: Sequence[Resident], rows: Sequence[int]) -> Move:
        """Copy states from host memory into pool rows; they also stay where they are."""
        move = self._moves.fetch(self._host, [r.place for r in residents], rows)
        for resident in residents:
            self.use(resident)

        def leave_all() -> None:
            for resident in residents:
                self.leave(resident)

        self._moves.then(move, leave_all)
        return move

    def spill(self, wanted: int) -> None:
        """Begin to move up to about `wanted` states to the host, as far as it has room."""
        wanted -= self._spilling
        if wanted <= 0:
            return
        batch = max(1, min(self._moves.most, _BATCH_BYTES // max(1, self._pool.row_bytes)))
        # More than is wanted now, so that the next stream finds room; but not all that there is.
        count = min(max(wanted, min(batch, len(self._device) // 4)), self._host.free)
        chosen = list(islice((r for r in self._device if not r.readers), count))
        for first in range(0, len(chosen), batch):
            if not self._spill(chosen[first : first + batch]):
                return

    def _spill(self, residents: list[Resident]) -> bool:
        try:
            places = self._host.acquire(len(residents))
        except Exception:  # the machine has less memory than was allowed: make do with it
            residents = residents[: self._host.free]
            if not residents:
                return False
            places = self._host.acquire(len(residents))
        for resident in residents:
            del self._device[resident]
        self._spilling += len(residents)
        move = self._moves.store([r.row for r in residents], self._host, places)
        self._moves.then(move, self._arrival(move, residents, places))
        return move.error is None

    def _arrival(
        self, move: Move, residents: list[Resident], places: list[int]
    ) -> Callable[[], None]:
        def arrive() -> None:
            self._spilling -= len(residents)
            for resident, place in zip(residents, places, strict=True):
                if resident.readers or move.error is not None:
                    self._host.release([place])
                    self._device[resident] = None
                else:
                    self._moves.release(resident.row)
                    resident.row, resident.place = -1, place
                self._forget_unused(resident)

        return arrive

    def _forget_unused(self, resident: Resident) -> None:
        """Free the memory of a state that was dropped, that no job uses and that is not moving."""
        if not resident.dropped or resident.users:
            return
        if resident in self._device:
            del self._device[resident]
            self._moves.release(resident.row)
        elif resident.place >= 0:
            self._host.release([resident.place])
        else:  # it is being spilled: `_arrival` comes back
            return
        resident.row = resident.place = -1
