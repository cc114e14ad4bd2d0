"""Leases: one request at a time may change a stream, in this process and among replicas."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal
from weakref import WeakValueDictionary

from sruserve.server.auth import Tenant
from sruserve.server.budget import Budget
from sruserve.server.errors import Overloaded, StoreUnavailable
from sruserve.server.streams.record import Key, StreamRecord
from sruserve.server.streams.store import StreamStore

# The first and the longest delay between attempts to take a stream that another replica has.
_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.02, 0.5
_MAX_WAITING = 256
_WAITING_BYTES = 16 << 10  # of the objects of a request that waits, with those of its connection
# Requests of a tenant, for any number of tenants: the parts of very many may exceed `max_bytes`.
_MIN_SHARE = 64


class Lease:
    """The right to change a stream; the store announces it to the other replicas.

    use: the stream's idle time restarts if the block ends without an error.
    """

    def __init__(
        self,
        store: StreamStore,
        releases: Sequence[Callable[[], None]],
        record: StreamRecord,
        use: bool,
    ) -> None:
        self._store, self._releases, self._record, self._use = store, releases, record, use

    async def __aenter__(self) -> StreamRecord:
        return self._record

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await self._store.release(self._record, used=self._use and kind is None)
        finally:
            _release(self._releases)


class LeaseManager:
    """The locks of all streams.

    max_bytes: of the objects of all waiting requests; each tenant has an equal part. Their bodies
        count elsewhere until they are read.
    max_waiting: requests that wait for one stream.
    min_share: requests of a tenant that may wait, however many tenants there are.
    """

    def __init__(
        self,
        max_bytes: int,
        tenants: int = 1,
        max_waiting: int = _MAX_WAITING,
        min_share: int = _MIN_SHARE,
    ) -> None:
        self._max_waiting = max_waiting
        share = max(min_share, max_bytes // _WAITING_BYTES // tenants)
        self._waiting = Budget(share * tenants, _overloaded, share=share)
        self._locks: WeakValueDictionary[Key, _StreamLock] = WeakValueDictionary()

    @asynccontextmanager
    async def alone(self, tenant: Tenant, stream_id: str) -> AsyncIterator[None]:
        """Lock a stream in this process, whether it exists or not."""
        lock = self._lock_of(tenant, stream_id)
        with self._waiting.hold(int(lock.is_taken), tenant.id):
            await lock.acquire()
        try:
            yield
        finally:
            lock.release()

    async def take(
        self,
        store: StreamStore,
        tenant: Tenant,
        stream_id: str,
        *,
        step: int | None = None,
        to_free: bool = False,
        unread: bool = False,
        use: bool = True,
        place: asyncio.Semaphore | None = None,
    ) -> Lease:
        """Wait until no other request has a stream, and take it.

        Raises `Overloaded` if too many requests wait already.

        step, to_free, unread: see `StreamStore.take`. use: see `Lease`.
        place: acquired before the store is asked, and released with the lease.
        """
        lock = self._lock_of(tenant, stream_id)
        failures = lock.failures
        take = partial(store.take, tenant, stream_id, step=step, to_free=to_free, unread=unread)
        releases: list[Callable[[], None]] = []
        with self._waiting.hold(int(lock.is_taken), tenant.id) as waiting:
            try:
                await lock.acquire()
                releases.append(lock.release)
                if place is not None:
                    if place.locked():
                        waiting.resize(1)
                    await place.acquire()
                    releases.append(place.release)
                if lock.failures > failures:  # else each waiter would wait for the store in turn
                    raise StoreUnavailable
                record = await _when_free(lock, take, partial(waiting.resize, 1))
            except BaseException:
                _release(releases)
                raise
        return Lease(store, releases, record, use)

    def _lock_of(self, tenant: Tenant, stream_id: str) -> "_StreamLock":
        """The lock of a stream, which exists while it is in use."""
        key = (tenant.id, stream_id)
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = _StreamLock(self._max_waiting)
        return lock


class _StreamLock(asyncio.Lock):
    """A lock that counts its waiters. failures: how often the store was unavailable."""

    waiting = failures = 0

    def __init__(self, max_waiting: int) -> None:
        super().__init__()
        self._max_waiting = max_waiting

    @property
    def is_taken(self) -> bool:
        """Whether a new request has to wait."""
        return self.locked() or self.waiting > 0

    async def acquire(self) -> Literal[True]:
        """Wait for the lock; raises `Overloaded` if too many requests wait already."""
        if self.waiting >= self._max_waiting:
            raise _too_long(self._max_waiting)
        self.waiting += 1
        try:
            return await super().acquire()
        finally:
            self.waiting -= 1


def _release(releases: Sequence[Callable[[], None]]) -> None:
    """Release a lock, and what was acquired after it."""
    for release in reversed(releases):
        release()


def _overloaded() -> Overloaded:
    return Overloaded(
        "too many requests of this API key wait for their streams (limit: "
        "SRUSERVE_MAX_QUEUE_BYTES); retry later"
    )


def _too_long(waiting: int) -> Overloaded:
    return Overloaded(
        f"{waiting} requests already wait for this stream, which serves one at a time; retry later"
    )


async def _when_free(
    lock: _StreamLock, take: Callable[[], Awaitable[StreamRecord | None]], wait: Callable[[], None]
) -> StreamRecord:
    """Take a stream once no other replica has it. wait: called before each delay."""
    seconds = _RETRY_SECONDS
    try:
        while (record := await take()) is None:
            wait()
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, _MAX_RETRY_SECONDS)
    except StoreUnavailable:
        lock.failures += 1
        raise
    return record
