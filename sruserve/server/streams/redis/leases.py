"""The leases of this server in Redis: it renews them, and other servers respect them.

The holder renews its lease every second. A replica that dies loses it after five seconds. A replica
that is late keeps the stream until another one takes it, and can change nothing after that.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from sruserve.server.errors import StoreUnavailable
from sruserve.server.streams.record import Key
from sruserve.server.streams.redis import scripts
from sruserve.server.streams.redis.client import PIPELINE_CALLS, RedisClient
from sruserve.server.streams.redis.keys import names
from sruserve.server.streams.redis.sealed_record import StateDigests
from sruserve.server.streams.redis.timing import RedisTiming


@dataclass(slots=True)
class TakenStream:
    """A stream whose lease this server has.

    left_ms: the stream's remaining idle time when it was taken.
    digests: of its states.
    reply_digest, reply_bytes: the digest and the length of its stored reply.
    state: the last state if it was read with the head, not yet compared with its digest; else
        empty.
    """

    lease: str
    left_ms: int
    digests: StateDigests
    reply_digest: str
    reply_bytes: int
    state: bytes = b""


class RedisLeases:
    """The leases that this server has.

    taken: their streams.
    """

    def __init__(self, client: RedisClient, timing: RedisTiming) -> None:
        self._client, self._timing = client, timing
        self.taken: dict[Key, TakenStream] = {}

    async def renew_forever(self) -> None:
        """Renew all leases again and again."""
        while True:
            await asyncio.sleep(self._timing.renew_seconds)
            calls = [
                (names(key), [key[1], taken.lease, self._timing.lease_ms])
                for key, taken in self.taken.items()
            ]
            renewals = [
                self._client.run_each(
                    scripts.RENEW, b"", calls[i : i + PIPELINE_CALLS], upkeep=True
                )
                for i in range(0, len(calls), PIPELINE_CALLS)
            ]
            await asyncio.gather(*renewals, return_exceptions=True)  # a commit sees a lost lease

    async def release(self, key: Key, lease: str, idle_ms: int | None = None) -> None:
        """Release a lease. idle_ms: the stream's life from now on; None: as before."""
        call = names(key), [key[1], lease, "" if idle_ms is None else idle_ms]
        with suppress(StoreUnavailable):  # the lease ends by itself
            await self._client.run(scripts.RELEASE, key[0], call, upkeep=True)
