"""Streams in Redis: any replica serves any of them, and a restart loses none.

A stream is one hash. Its `head` describes it, its `reply` answers the last step, and `state1`,
`state2`, … are the states after its checkpoints. The head and the reply are sealed records; a state
is a sealed state token.

A step waits for Redis twice. The first script takes the lease, and reads the head and the last
state. The second one writes the new head, reply and state, and releases the lease. Only a repeated
step reads the stored reply.
"""

import asyncio
from collections.abc import Callable, Sequence

from sruserve.server.auth import Tenant
from sruserve.server.budget import Budget
from sruserve.server.clocks import SYSTEM_CLOCKS
from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.errors import Overloaded, StateRefused
from sruserve.server.offload import LONG_BYTES, offload
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.seeds import random_bytes
from sruserve.server.state.token import Envelope
from sruserve.server.streams.detached_tasks import DetachedTasks
from sruserve.server.streams.record import StreamRecord, key_of
from sruserve.server.streams.redis import scripts
from sruserve.server.streams.redis.client import RedisClient
from sruserve.server.streams.redis.forks import ForkWriter
from sruserve.server.streams.redis.keys import names
from sruserve.server.streams.redis.known_models import KnownModels
from sruserve.server.streams.redis.leases import RedisLeases
from sruserve.server.streams.redis.quotas import RedisQuotas
from sruserve.server.streams.redis.reader import StreamReader
from sruserve.server.streams.redis.scripts import Status
from sruserve.server.streams.redis.sealed_record import RecordCodec
from sruserve.server.streams.redis.timing import REDIS_TIMING, RedisTiming
from sruserve.server.streams.redis.writer import StreamWriter
from sruserve.server.streams.shared_state import SharedState
from sruserve.server.streams.store import MAX_REPLY_BYTES, MIN_IDLE_SECONDS, lease_lost

_HEAD_BYTES = 64 << 10
_SEAL_BYTES = 1 << 10  # overhead of a seal


class RedisStore:
    """The streams of all servers that have the same Redis and the same state keys.

    max_field_bytes: of a reply or a state. Longer ones were changed in Redis, and are not read.
    quotas, assumed_memory: see `RedisQuotas`.
    max_reply_bytes: of stored replies that are read at a time; of a tenant, half.
    epoch: seconds since 1970. Redis has a clock of its own, which ends streams and leases.
    """

    state_output = StateOutput.COPY

    def __init__(
        self,
        url: str,
        envelope: Envelope,
        max_field_bytes: int,
        quotas: Sequence[int],
        assumed_memory: int = 0,
        timing: RedisTiming = REDIS_TIMING,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        epoch: Callable[[], float] = SYSTEM_CLOCKS.epoch,
    ) -> None:
        self._client, self._timing = RedisClient(url, timing), timing
        self._max_field_bytes = max_field_bytes + _SEAL_BYTES
        self._quotas = RedisQuotas(quotas, assumed_memory)
        self._models = KnownModels()
        records = RecordCodec(envelope)
        self._reader = StreamReader(
            self._client, records, self._models, self._max_field_bytes, epoch
        )
        self._writer = StreamWriter(self._client, records, self._models, self._quotas, epoch)
        self._forks = ForkWriter(self._client, self._writer)
        self._leases = RedisLeases(self._client, timing)
        self._replies = Budget(max_reply_bytes, _overloaded, share=max_reply_bytes // 2)
        self._tasks = DetachedTasks()

    async def start(self) -> None:
        self._tasks.start(self._leases.renew_forever())
        self._tasks.start(self._quotas.follow_memory(self._client, self._timing.memory_seconds))

    async def stop(self) -> None:
        for task in self._tasks.running:
            task.cancel()
        await asyncio.gather(*self._tasks.running, return_exceptions=True)
        await self._client.close()

    async def add(
        self, served: ServedModel, record: StreamRecord, start: Snapshot | None
    ) -> StreamRecord:
        token = "" if start is None else await _seal(served, start)
        (added,) = await self._writer.add(served, [record], token, random_bytes().hex())
        return added

    async def read(self, tenant: Tenant, stream_id: str) -> StreamRecord:
        call = names((tenant.id, stream_id)), [stream_id, _HEAD_BYTES]
        reply = await self._client.run(scripts.READ, tenant.id, call)
        record, _ = self._reader.open(tenant, stream_id, reply, lease="")
        return record

    async def model(self, tenant: Tenant, stream_id: str) -> tuple[str, str]:
        known = self._models.get((tenant.id, stream_id))
        if known is not None:
            return known
        record = await self.read(tenant, stream_id)
        return record.model, record.weights

    async def take(
        self,
        tenant: Tenant,
        stream_id: str,
        *,
        step: int | None = None,
        to_free: bool = False,
        unread: bool = False,
    ) -> StreamRecord | None:
        key, lease = (tenant.id, stream_id), random_bytes().hex()
        arguments = [stream_id, lease, self._timing.lease_ms, _HEAD_BYTES, int(to_free)]
        arguments += [self._max_field_bytes, "" if step is None else step]
        try:
            reply = await self._client.run(scripts.TAKE, tenant.id, (names(key), arguments))
            if reply == Status.BUSY:
                return None
            try:
                record, taken = self._reader.open(tenant, stream_id, reply, lease)
            except StateRefused:
                if not unread:
                    raise
                record = StreamRecord(
                    stream_id, tenant, model="", seed=0, idle_seconds=0, created=0
                )
                taken = self._reader.unread(reply, lease)
            self._leases.taken[key] = taken
        except BaseException:  # Redis may have run the script, or may run it later
            self._tasks.start(self._leases.release(key, lease))
            raise
        return record

    async def release(self, record: StreamRecord, *, used: bool) -> None:
        key = key_of(record)
        taken = self._leases.taken.pop(key, None)
        if taken is None:
            return
        least_ms = int(1000 * MIN_IDLE_SECONDS)
        idle_ms = record.idle_seconds * 1000 if used else max(taken.left_ms, least_ms)
        releasing = self._tasks.start(self._leases.release(key, taken.lease, idle_ms))
        if not self._client.unavailable:  # else it may take as long as the command that failed
            await asyncio.shield(releasing)

    async def reply(self, record: StreamRecord) -> bytes:
        taken = self._leases.taken[key_of(record)]
        size = min(taken.reply_bytes, self._max_field_bytes)
        with self._replies.hold(size, record.tenant.owner):
            return await self._reader.reply(record, taken)

    def make_room(self, served: ServedModel, record: StreamRecord, max_checkpoints: int) -> int:
        del record  # Redis refuses a commit for which it has no room
        served.states.check_store_fit()
        return max_checkpoints

    async def state(self, served: ServedModel, record: StreamRecord) -> Snapshot | None:
        token = await self._reader.token(record, self._leases.taken[key_of(record)])
        if not token:
            return None
        return await offload(len(token) > LONG_BYTES, served.open_state, token)

    async def commit(
        self, served: ServedModel, record: StreamRecord, end: SharedState | None
    ) -> StreamRecord | None:
        token = "" if end is None else await _seal(served, end.of(served))
        key = key_of(record)
        committed = await self._writer.commit(served, record, self._leases.taken[key], token)
        if committed is not None:
            self._leases.taken.pop(key, None)
        return committed

    async def rewind(self, served: ServedModel, record: StreamRecord) -> StreamRecord | None:
        key = key_of(record)
        taken = self._leases.taken[key]
        rewound = await self._writer.commit(served, record, taken, bounded=False)
        if rewound is not None:
            self._leases.taken.pop(key, None)
        return rewound

    async def fork(
        self, served: ServedModel, record: StreamRecord, copies: list[StreamRecord]
    ) -> list[StreamRecord]:
        token = await self._reader.token(record, self._leases.taken[key_of(record)])
        return await self._forks.add(served, copies, token)

    async def delete(self, record: StreamRecord) -> None:
        key = key_of(record)
        call = names(key), [record.id, self._leases.taken[key].lease]
        status = await self._client.run(scripts.DELETE, key[0], call)
        if status == Status.LEASE_LOST:
            raise lease_lost()
        if status != Status.CHANGED:
            raise self._client.bad_reply()
        self._leases.taken.pop(key)

    async def end(self, engine: JobEngine) -> None:
        del engine  # its states are in Redis, and another one of the same model continues them


async def _seal(served: ServedModel, state: Snapshot) -> str:
    long = served.model.network.layout.nbytes > LONG_BYTES
    return await offload(long, served.seal_stored_state, state)


def _overloaded() -> Overloaded:
    return Overloaded("too many bytes of stored replies are being read; retry later")
