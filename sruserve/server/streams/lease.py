"""Whose turn it is at a stream: one at a time, in this process and among replicas."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Literal
from weakref import WeakValueDictionary

from sruserve.server.auth import Tenant
from sruserve.server.budget import Budget
from sruserve.server.errors import Overloaded, StoreUnavailable
from sruserve.server.streams.store import StreamRecord, StreamStore

# Between two looks at a stream that another replica works on: at first, and at most.
_LOOK_AGAIN_SECONDS, _LOOK_AGAIN_MOST_SECONDS = 0.02, 0.5
_MOST_IN_LINE = 256
_WAITING_BYTES = 16 << 10  # of the objects of a request that waits, with those of its connection
# Of a tenant, however many tenants there are: of very many, all parts together may be more than
# `most_bytes`.
_LEAST_WAITING = 64


class Lease:
    """The right to change a stream, which the store's lease says to replicas.

    use: the stream's idle time begins anew where the turn ends without an error.
    """

    def __init__(
        self, store: StreamStore, places: AsyncExitStack, held: StreamRecord, use: bool
    ) -> None:
        self._store, self._places, self._held, self._use = store, places, held, use

    async def __aenter__(self) -> StreamRecord:
        return self._held

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        async with self._places:
            await self._store.release(self._held, used=self._use and kind is None)


class LeaseManager:
    """The locks of all streams.

    most_bytes: of the objects of the requests that wait for them, which all tenants have equal
        parts of. Their bodies count elsewhere, as long as nobody works on them.
    most_in_line: requests that wait for one stream.
    least_waiting: requests of a tenant that may wait, however many tenants there are.
    """

    def __init__(
        self,
        most_bytes: int,
        tenants: int = 1,
        most_in_line: int = _MOST_IN_LINE,
        least_waiting: int = _LEAST_WAITING,
    ) -> None:
        self._most_in_line = most_in_line
        most = max(least_waiting, most_bytes // _WAITING_BYTES // tenants)
        self._waiting = Budget(most * tenants, _overloaded, share=most)
        self._locks: WeakValueDictionary[tuple[bytes, str], _StreamLock] = WeakValueDictionary()

    @asynccontextmanager
    async def alone(self, tenant: Tenant, stream_id: str) -> AsyncIterator[None]:
        """The time in which nobody else here works on a stream, which need not be there."""
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
        """Wait until nobody else works on a stream, and take it.

        Raises `Overloaded` if it is to wait, and there is no room for one more that does.

        step, to_free, unread: as of `StreamStore.take`. use: as of `Lease`.
        place: what is waited for before the store is asked, and had until the turn is over.
        """
        lock, asked = self._lock_of(tenant, stream_id), time.monotonic()
        take = partial(store.take, tenant, stream_id, step=step, to_free=to_free, unread=unread)
        with self._waiting.hold(int(lock.is_taken), tenant.id) as waiting:
            async with AsyncExitStack() as places:
                await places.enter_async_context(lock)
                if place is not None:
                    if place.locked():
                        waiting.resize(1)
                    await places.enter_async_context(place)
                if lock.failed_at > asked:  # each would wait for the store as long as the first
                    raise StoreUnavailable
                held = await _when_free(lock, take, partial(waiting.resize, 1))
                return Lease(store, places.pop_all(), held, use)

    def _lock_of(self, tenant: Tenant, stream_id: str) -> "_StreamLock":
        """The lock of a stream, which lives while it is used."""
        key = (tenant.id, stream_id)
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = _StreamLock(self._most_in_line)
        return lock


class _StreamLock(asyncio.Lock):
    """Who waits here for a stream; failed_at: when the store could last not say whose it is."""

    waiting = 0
    failed_at = -math.inf

    def __init__(self, most_in_line: int) -> None:
        super().__init__()
        self._most_in_line = most_in_line

    @property
    def is_taken(self) -> bool:
        """Whether one who comes now has to wait."""
        return self.locked() or self.waiting > 0

    async def acquire(self) -> Literal[True]:
        """Wait for the turn; raises `Overloaded` where too many do."""
        if self.waiting >= self._most_in_line:
            raise _too_long(self._most_in_line)
        self.waiting += 1
        try:
            return await super().acquire()
        finally:
            self.waiting -= 1


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
    """Take a stream soon after no other replica has it. wait: called before it is waited for."""
    wait_seconds = _LOOK_AGAIN_SECONDS
    try:
        while (held := await take()) is None:
            wait()
            await asyncio.sleep(wait_seconds)
            wait_seconds = min(2 * wait_seconds, _LOOK_AGAIN_MOST_SECONDS)
    except StoreUnavailable:
        lock.failed_at = time.monotonic()
        raise
    return held
