"""Forks of a server-held stream: all of them or none, a few requests of a tenant at a time."""

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

from sruserve.server.repository.served_model import ServedModel
from sruserve.server.streams.detached_tasks import DetachedTasks
from sruserve.server.streams.lease import LeaseManager
from sruserve.server.streams.record import StreamRecord, alive, new_id
from sruserve.server.streams.store import StreamStore
from sruserve.server.streams.unused import delete_unused
from sruserve.server.unheard import shielded

MAX_FORKS = 256
_CONCURRENT = 4  # requests of a tenant


class Forks:
    """Creates forks, and deletes those of a caller that leaves.

    epoch: seconds since 1970, on the clock of the store.
    """

    def __init__(
        self, leases: LeaseManager, tasks: DetachedTasks, epoch: Callable[[], float]
    ) -> None:
        self._leases, self._tasks, self._epoch = leases, tasks, epoch
        self._places: WeakValueDictionary[bytes, asyncio.Semaphore] = WeakValueDictionary()

    async def create(
        self, store: StreamStore, served: ServedModel, stream_id: str, n: int
    ) -> list[StreamRecord]:
        """Create `n` forks. See `Streams.fork`."""
        copies: list[StreamRecord] = []
        forking = self._tasks.start(self._create(store, served, stream_id, n, copies))
        try:
            await shielded(forking)
        except asyncio.CancelledError:
            forking.cancel()
            self._tasks.start_unawaited(self._undo(store, forking, copies))
            raise
        finally:
            del forking  # its error would hold this frame
        return copies

    async def _create(
        self,
        store: StreamStore,
        served: ServedModel,
        stream_id: str,
        n: int,
        made: list[StreamRecord],
    ) -> None:
        """Create all forks or none. They count as concurrent forks even if their caller leaves.

        made: receives the forks once they exist.
        """
        place = self._places.setdefault(served.tenant.id, asyncio.Semaphore(_CONCURRENT))
        with served.in_flight:
            lease = await self._leases.take(store, served.tenant, stream_id, place=place)
            async with lease as record:
                now = int(self._epoch())
                copies = [alive(record).fork(new_id(), now) for _ in range(n)]
                made += await store.fork(served, record, copies)

    async def _undo(
        self, store: StreamStore, forking: asyncio.Task[None], copies: list[StreamRecord]
    ) -> None:
        """Delete the forks of a caller that has left."""
        await asyncio.wait([forking])
        for copy in copies:
            await delete_unused(store, self._leases, copy)
