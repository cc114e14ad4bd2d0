"""Write streams to Redis, within the quotas of their tenants."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sruserve.server.auth import over_quota
from sruserve.server.errors import StreamExists
from sruserve.server.offload import LONG_BYTES, offload
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.streams.record import StreamRecord, key_of
from sruserve.server.streams.redis import scripts
from sruserve.server.streams.redis.client import Call, RedisClient
from sruserve.server.streams.redis.keys import names, state_field
from sruserve.server.streams.redis.known_models import KnownModels
from sruserve.server.streams.redis.leases import TakenStream
from sruserve.server.streams.redis.quotas import RedisQuotas
from sruserve.server.streams.redis.scripts import Status
from sruserve.server.streams.redis.sealed_record import RecordCodec, StateDigests, digest

_NO_LIMIT = -1  # bytes


class StreamWriter:
    """Adds streams, and commits their changes."""

    def __init__(
        self,
        client: RedisClient,
        records: RecordCodec,
        models: KnownModels,
        quotas: RedisQuotas,
        epoch: Callable[[], float],
    ) -> None:
        self._client, self._records, self._models = client, records, models
        self._quotas, self._epoch = quotas, epoch

    async def add(
        self, served: ServedModel, streams: list[StreamRecord], token: str, adder: str
    ) -> list[StreamRecord]:
        """Add streams that are all in the same state, in one message.

        token: their state; empty: there is none.
        adder: a name of this call alone. A script that runs twice under it adds its stream once.
        """
        max_bytes = self._quotas.max_bytes_of(served.tenant)
        served.states.mark_stored()
        calls: list[Call] = []
        for record in streams:
            fields = await self._fields(record, {}, token)
            arguments = [*_quota_arguments(record, max_bytes), adder, *fields]
            calls.append((names(key_of(record)), arguments))
        statuses = await self._client.run_each(scripts.ADD, served.tenant.id, calls)
        if Status.EXISTS in statuses:
            raise StreamExists("a live stream has that id: end it, or choose another id")
        pairs = zip(streams, statuses, strict=True)
        return [self._changed(record, status, max_bytes) for record, status in pairs]

    async def commit(
        self,
        served: ServedModel,
        record: StreamRecord,
        taken: TakenStream,
        token: str = "",
        *,
        bounded: bool = True,
    ) -> StreamRecord | None:
        """Write a taken stream, and release it. None: the lease is lost.

        token: its new state; empty: there is none.
        bounded: whether the tenant's quota may refuse it.
        """
        max_bytes = self._quotas.max_bytes_of(served.tenant) if bounded else _NO_LIMIT
        served.states.mark_stored()
        key = key_of(record)
        staying = record.checkpoints or (1, 0)  # they have no gaps
        fields = await self._fields(record, taken.digests, token)
        arguments = [
            *_quota_arguments(record, max_bytes),
            taken.lease,
            staying[0],
            staying[-1],
            *fields,
        ]
        status = await self._client.run(scripts.COMMIT, key[0], (names(key), arguments))
        if status == Status.LEASE_LOST:
            return None
        return self._changed(record, status, max_bytes)

    def _changed(self, record: StreamRecord, status: Any, max_bytes: int) -> StreamRecord:
        """The stream after a change, or the error that its status means."""
        if status == Status.CHANGED:
            self._models.remember(key_of(record), record.model, record.weights)
            return replace(record, expires_at=self._epoch() + record.idle_seconds)
        if type(status) is int and status >= 0:
            raise over_quota(status, max_bytes)
        raise self._client.bad_reply()

    async def _fields(
        self, record: StreamRecord, digests: StateDigests, token: str
    ) -> list[str | bytes]:
        """The fields of a stream's record and of its new state, if it has one, and their values."""
        parts: list[str | bytes] = []
        if token:
            parts += state_field(record.step), token
            digests = digests | {record.step: digest(token.encode())}
        sealed = await offload(len(record.reply) > LONG_BYTES, self._records.seal, record, digests)
        for field in sealed.items():
            parts += field
        return parts


def _quota_arguments(record: StreamRecord, max_bytes: int) -> list[Any]:
    """The first arguments of `ADD` and `COMMIT`: id, limit of bytes, idle time."""
    return [record.id, max_bytes, record.idle_seconds * 1000]
