"""Whose turn it is at a stream: one at a time, in this process and among replicas."""

import asyncio
import math
import time
from weakref import WeakValueDictionary

from sruserve.server.budget import Budget
from sruserve.server.errors import Overloaded, StoreUnavailable
from sruserve.server.streams.held import Held, Store
from sruserve.server.tenants import Tenant

_LOOK_AGAIN_SECONDS = 0.02  # at a stream that another replica works on


class Turn:
    """The right to change a stream, which the store's lease says to replicas."""

    def __init__(self, store: Store, line: asyncio.Lock, held: Held) -> None:
        self._store, self._line, self._held = store, line, held

    async def __aenter__(self) -> Held:
        return self._held

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._store.give_back(self._held)
        finally:
            self._line.release()


class Turns:
    """The lines in front of all streams.

    most_bytes: of the requests that wait in them; a tenant's may be half of that.
    """

    def __init__(self, most_bytes: int) -> None:
        self._waiting = Budget(most_bytes, _overloaded, share=most_bytes // 2)
        self._lines: WeakValueDictionary[tuple[bytes, str], _Line] = WeakValueDictionary()

    def line(self, tenant: Tenant, stream_id: str) -> "_Line":
        """Whose holder is the only one here that works on the stream; it lives while it is used."""
        key = (tenant.id, stream_id)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        return line

    async def take(
        self,
        store: Store,
        tenant: Tenant,
        stream_id: str,
        cost: int = 0,
        *,
        to_free: bool = False,
    ) -> Turn:
        """Wait until nobody else works on a stream, and take it.

        cost: bytes of the request that waits; `Overloaded` if there is no room for it.
        to_free: as of `Store.take`.
        """
        with self._waiting.hold(cost, tenant.owner):
            line, asked = self.line(tenant, stream_id), time.monotonic()
            await line.acquire()
            try:
                if line.failed_at > asked:  # each would wait for the store as long as the first
                    raise StoreUnavailable
                held = await _when_free(store, line, tenant, stream_id, to_free)
            except BaseException:
                line.release()
                raise
            return Turn(store, line, held)


class _Line(asyncio.Lock):
    """Who waits here for a stream; failed_at: when the store could last not say whose it is."""

    failed_at = -math.inf


def _overloaded() -> Overloaded:
    return Overloaded(
        "too many request bytes wait for their streams (limit: SRUSERVE_MAX_QUEUE_BYTES); "
        "retry later"
    )


async def _when_free(
    store: Store, line: _Line, tenant: Tenant, stream_id: str, to_free: bool
) -> Held:
    """Take a stream as soon as no other replica has it."""
    try:
        while (held := await store.take(tenant, stream_id, to_free=to_free)) is None:
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
    except StoreUnavailable:
        line.failed_at = time.monotonic()
        raise
    return held
