"""The service of server-held streams, and the store that the settings ask for."""

from collections.abc import Sequence

from sruserve.server.settings import Settings, master_keys, parse_keys
from sruserve.server.state_token import Envelope
from sruserve.server.streams.held import Store
from sruserve.server.streams.memory import MemoryStore
from sruserve.server.streams.service import Streams
from sruserve.server.tenants import Tenants


def open_streams(settings: Settings, tenants: Tenants) -> Streams:
    """Streams as the operator wants them; nothing is connected before they start."""
    return Streams(
        _open_store(settings, tenants.quotas),
        checkpoints=settings.stream_checkpoints,
        idle_seconds=settings.stream_idle_seconds,
        reply_bytes=settings.max_body_bytes,
        waiting_bytes=settings.max_queue_bytes,
        tenants=len(tenants.quotas),
    )


def _open_store(settings: Settings, quotas: Sequence[int]) -> Store | None:
    if settings.store is not None:
        from sruserve.server.streams.redis_store import RedisStore  # the extra `redis` is there

        keys = parse_keys(master_keys(settings))
        most_bytes = max(settings.max_body_bytes, settings.max_token_bytes)
        address = settings.store.get_secret_value()
        return RedisStore(address, Envelope(keys), most_bytes, quotas, hidden=settings.stream_bytes)
    return MemoryStore(settings.stream_bytes, quotas) if settings.workers == 1 else None
