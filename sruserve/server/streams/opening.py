"""Create the service of server-held streams with the configured store."""

from collections.abc import Sequence

from sruserve.server.auth import Tenants
from sruserve.server.clocks import SYSTEM_CLOCKS, Clocks
from sruserve.server.settings import Settings, key_ring
from sruserve.server.state.token import Envelope
from sruserve.server.streams.memory.store import MemoryStore
from sruserve.server.streams.redis.timing import REDIS_TIMING, RedisTiming
from sruserve.server.streams.service import Streams
from sruserve.server.streams.store import MAX_REPLY_BYTES, StreamStore


def create_streams(
    settings: Settings,
    tenants: Tenants,
    clocks: Clocks = SYSTEM_CLOCKS,
    timing: RedisTiming = REDIS_TIMING,
    max_reply_bytes: int = MAX_REPLY_BYTES,
) -> Streams:
    """Streams as the settings say; no connection is opened before they start.

    timing, max_reply_bytes: of a store in Redis.
    """
    return Streams(
        _open_store(settings, tenants.quotas, clocks, timing, max_reply_bytes),
        checkpoints=settings.stream_checkpoints,
        idle_seconds=settings.stream_idle_seconds,
        reply_bytes=settings.max_body_bytes,
        waiting_bytes=settings.max_queue_bytes,
        tenants=len(tenants.quotas),
        epoch=clocks.epoch,
    )


def _open_store(
    settings: Settings,
    quotas: Sequence[int],
    clocks: Clocks,
    timing: RedisTiming,
    max_reply_bytes: int,
) -> StreamStore | None:
    if settings.store is not None:
        from sruserve.server.streams.redis.store import RedisStore  # needs the extra `redis`

        max_bytes = max(settings.max_body_bytes, settings.max_state_token_bytes)
        address = settings.store.get_secret_value()
        return RedisStore(
            address,
            Envelope(key_ring(settings)),
            max_bytes,
            quotas,
            settings.stream_bytes,
            timing,
            max_reply_bytes,
            clocks.epoch,
        )
    return MemoryStore(settings.stream_bytes, quotas, clocks) if settings.workers == 1 else None
