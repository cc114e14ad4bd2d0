"""Read streams from Redis, and compare what it returns with the digests in their heads."""

import re
from collections.abc import Callable
from typing import Any

from sruserve.server.auth import Tenant
from sruserve.server.offload import LONG_BYTES, offload
from sruserve.server.streams.record import StreamRecord, key_of
from sruserve.server.streams.redis import scripts
from sruserve.server.streams.redis.client import RedisClient
from sruserve.server.streams.redis.keys import names, state_field
from sruserve.server.streams.redis.known_models import KnownModels
from sruserve.server.streams.redis.leases import TakenStream
from sruserve.server.streams.redis.scripts import Status
from sruserve.server.streams.redis.sealed_record import RecordCodec, digest
from sruserve.server.streams.store import lease_lost, missing_stream

_NUMBERS = re.compile(rb"(-?[0-9]{1,15}) ([0-9]{1,15}) ([0-9]{1,15}) ")


class StreamReader:
    """Reads records, replies and states.

    max_field_bytes: of a sealed reply or state. Longer ones were changed in Redis, and are not
        read.
    """

    def __init__(
        self,
        client: RedisClient,
        records: RecordCodec,
        models: KnownModels,
        max_field_bytes: int,
        epoch: Callable[[], float],
    ) -> None:
        self._client, self._records, self._models = client, records, models
        self._max_field_bytes, self._epoch = max_field_bytes, epoch

    def open(
        self, tenant: Tenant, stream_id: str, reply: Any, lease: str
    ) -> tuple[StreamRecord, TakenStream]:
        """The stream in a reply of `TAKE` or `READ`, and the rest of what that holds."""
        if type(reply) is int and reply in (Status.UNKNOWN, Status.EXPIRED):
            raise missing_stream(expired=reply == Status.EXPIRED)
        head, left_ms, reply_bytes, state = self._parts(reply)
        expires_at = self._epoch() + left_ms / 1000
        record, digests, reply_digest = self._records.open(tenant, stream_id, head, expires_at)
        self._models.remember((tenant.id, stream_id), record.model, record.weights)
        return record, TakenStream(lease, left_ms, digests, reply_digest, reply_bytes, state)

    def unread(self, reply: Any, lease: str) -> TakenStream:
        """The stream in a reply of `TAKE` whose record is unreadable."""
        return TakenStream(lease, self._parts(reply)[1], {}, "", 0)

    def _parts(self, reply: Any) -> tuple[bytes, int, int, bytes]:
        """The head, the remaining milliseconds, the length of the stored reply, and the state."""
        numbers = _NUMBERS.match(reply) if isinstance(reply, bytes) else None
        if numbers is None:
            raise self._client.bad_reply()
        left_ms, reply_bytes, head_bytes = map(int, numbers.groups())
        begin, end = numbers.end(), numbers.end() + head_bytes
        if end > len(reply):
            raise self._client.bad_reply()
        return reply[begin:end], left_ms, reply_bytes, reply[end:]

    async def reply(self, record: StreamRecord, taken: TakenStream) -> bytes:
        """The reply to the last step of a taken stream."""
        sealed = await self._field(record, taken, "reply")
        opening = self._records.open_reply, record, sealed, taken.reply_digest
        return await offload(taken.reply_bytes > LONG_BYTES, *opening)

    async def token(self, record: StreamRecord, taken: TakenStream) -> str:
        """The sealed state after the last step of a taken stream; empty before the first."""
        token, expected = taken.state, taken.digests[record.step]
        taken.state = b""  # used once; free it
        if digest(token) != expected:  # not read yet, or not of the last step
            token = await self._field(record, taken, state_field(record.step))
            if digest(token) != expected:
                raise self._records.tampered()
        return str(token, "ascii")

    async def _field(self, record: StreamRecord, taken: TakenStream, name: str) -> bytes:
        """A field of a taken stream; raises if another server has taken it meanwhile."""
        key = key_of(record)
        call = names(key), [name, self._max_field_bytes, taken.lease]
        reply = await self._client.run(scripts.READ_FIELD, key[0], call)
        if reply == Status.LEASE_LOST:
            raise lease_lost()
        if not isinstance(reply, bytes):
            raise self._client.bad_reply()
        return reply
