"""Streams in Redis: any replica serves any of them, and a restart loses none.

A stream is one hash. Its `head` describes it, its `reply` answers the last step, and `state1`,
`state2`, … are the states after its checkpoints. The head and the reply are sealed records; a state
is a sealed state token.

A step waits for Redis twice. The first script takes the lease, and reads the head and the last
state. The second one writes the new head, reply and state, and releases the lease. Only a repeated
step reads the stored reply.

The holder renews its lease every second. A replica that dies loses it after five seconds. A replica
that is late keeps the stream until another one takes it, and can change nothing after that.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sruserve.server.auth import Tenant, over_quota
from sruserve.server.budget import Budget
from sruserve.server.clocks import SYSTEM_CLOCKS
from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.errors import Overloaded, StateRefused, StoreUnavailable, StreamExists
from sruserve.server.offload import LONG_BYTES, offload
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.seeds import random_bytes
from sruserve.server.state.token import Envelope
from sruserve.server.streams.redis import scripts
from sruserve.server.streams.redis.client import Call, RedisClient
from sruserve.server.streams.redis.scripts import Status
from sruserve.server.streams.redis.sealed_record import RecordCodec, StateDigests, digest
from sruserve.server.streams.redis.timing import REDIS_TIMING, RedisTiming
from sruserve.server.streams.shared_state import SharedState
from sruserve.server.streams.shares import fair_part
from sruserve.server.streams.store import (
    MAX_REPLY_BYTES,
    MIN_IDLE_SECONDS,
    StreamRecord,
    lease_lost,
    missing_stream,
)

Key = tuple[bytes, str]
T = TypeVar("T")

_HEAD_BYTES = 64 << 10
_SEAL_BYTES = 1 << 10  # overhead of a seal
_PIPELINE_CALLS, _PIPELINE_BYTES = 8, 1 << 20  # which Redis runs in a few milliseconds
_NO_LIMIT = -1  # bytes
_NUMBERS = re.compile(rb"(-?[0-9]{1,15}) ([0-9]{1,15}) ([0-9]{1,15}) ")
_KNOWN_MODELS = 1 << 14  # streams, each of about 300 bytes
_SPARE_PARTS = 4  # one of four parts of Redis' memory is for its clients and others' data


@dataclass(slots=True)
class _Taken:
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


class RedisStore:
    """The streams of all servers that have the same Redis and the same state keys.

    max_field_bytes: of a reply or a state. Longer ones were changed in Redis, and are not read.
    quotas: the bytes that each tenant may have in Redis. Tenants divide a Redis that has less
        memory than all quotas together, so that none of them fills it.
    assumed_memory: the limit of Redis' memory if Redis permits no INFO and there are several
        tenants; 0: none.
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
        self._epoch = epoch
        self._client, self._timing = RedisClient(url, timing), timing
        self._records = RecordCodec(envelope)
        self._max_field_bytes = max_field_bytes + _SEAL_BYTES
        self._quotas, self._part = quotas, max(quotas)
        self._assumed_memory = assumed_memory if len(quotas) > 1 else 0
        self._replies = Budget(max_reply_bytes, _overloaded, share=max_reply_bytes // 2)
        self._taken: dict[Key, _Taken] = {}
        self._models: OrderedDict[Key, tuple[str, str]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._begin(self._renew())
        self._begin(self._watch_memory())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    async def add(
        self, served: ServedModel, record: StreamRecord, start: Snapshot | None
    ) -> StreamRecord:
        token = "" if start is None else await _seal(served, start)
        (added,) = await self._add(served, [record], token, random_bytes().hex())
        return added

    async def read(self, tenant: Tenant, stream_id: str) -> StreamRecord:
        key = (tenant.id, stream_id)
        reply = await self._run(scripts.READ, key, stream_id, _HEAD_BYTES)
        record, _ = self._open(tenant, stream_id, reply, lease="")
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
            reply = await self._run(scripts.TAKE, key, *arguments)
            if reply == Status.BUSY:
                return None
            try:
                record, self._taken[key] = self._open(tenant, stream_id, reply, lease)
            except StateRefused:
                if not unread:
                    raise
                record = StreamRecord(
                    stream_id, tenant, model="", seed=0, idle_seconds=0, created=0
                )
                self._taken[key] = _Taken(lease, self._parts(reply)[1], {}, "", 0)
        except BaseException:  # Redis may have run the script, or may run it later
            self._begin(self._release(key, lease))
            raise
        return record

    async def release(self, record: StreamRecord, *, used: bool) -> None:
        taken = self._taken.pop(_key(record), None)
        if taken is None:
            return
        least_ms = int(1000 * MIN_IDLE_SECONDS)
        idle_ms = record.idle_seconds * 1000 if used else max(taken.left_ms, least_ms)
        releasing = self._begin(self._release(_key(record), taken.lease, idle_ms))
        if not self._client.unavailable:  # else it may take as long as the command that failed
            await asyncio.shield(releasing)

    async def reply(self, record: StreamRecord) -> bytes:
        taken = self._taken[_key(record)]
        size = taken.reply_bytes
        with self._replies.hold(min(size, self._max_field_bytes), record.tenant.owner):
            sealed = await self._field(record, "reply")
            opening = self._records.open_reply, record, sealed, taken.reply_digest
            return await offload(size > LONG_BYTES, *opening)

    def make_room(self, served: ServedModel, record: StreamRecord, max_checkpoints: int) -> int:
        del record  # Redis refuses a commit for which it has no room
        served.states.check_store_fit()
        return max_checkpoints

    async def state(self, served: ServedModel, record: StreamRecord) -> Snapshot | None:
        token = await self._token(record)
        if not token:
            return None
        return await offload(len(token) > LONG_BYTES, served.open_state, token)

    async def commit(
        self, served: ServedModel, record: StreamRecord, end: SharedState | None
    ) -> StreamRecord | None:
        token = "" if end is None else await _seal(served, end.of(served))
        return await self._commit(served, record, token)

    async def rewind(self, served: ServedModel, record: StreamRecord) -> StreamRecord | None:
        return await self._commit(served, record, bounded=False)

    async def fork(
        self, served: ServedModel, record: StreamRecord, copies: list[StreamRecord]
    ) -> list[StreamRecord]:
        token, adder = await self._token(record), random_bytes().hex()
        size = max(1, min(_PIPELINE_CALLS, _PIPELINE_BYTES // (len(token) + 1)))
        added: list[StreamRecord] = []
        begun = 0
        try:
            while begun < len(copies):
                part = copies[begun : begun + size]
                begun += len(part)
                added += await _uninterrupted(self._add(served, part, token, adder))
            return added
        except BaseException:
            await _uninterrupted(self._delete_added(copies[:begun], adder))
            raise

    async def delete(self, record: StreamRecord) -> None:
        lease = self._taken[_key(record)].lease
        status = await self._run(scripts.DELETE, _key(record), record.id, lease)
        if status == Status.LEASE_LOST:
            raise lease_lost()
        if status != Status.CHANGED:
            raise self._client.bad_reply()
        self._taken.pop(_key(record))

    async def end(self, engine: JobEngine) -> None:
        del engine  # its states are in Redis, and another one of the same model continues them

    async def _add(
        self, served: ServedModel, streams: list[StreamRecord], token: str, adder: str
    ) -> list[StreamRecord]:
        """Add streams that are all in the same state.

        adder: a name of this call alone. A script that runs twice under it adds its stream once.
        """
        max_bytes = self._max_bytes_of(served.tenant)
        served.states.mark_stored()
        calls: list[Call] = []
        for record in streams:
            fields = await self._fields(record, {}, token)
            arguments = [*_quota_arguments(record, max_bytes), adder, *fields]
            calls.append((_names(_key(record)), arguments))
        statuses = await self._client.run_each(scripts.ADD, served.tenant.id, calls)
        if Status.EXISTS in statuses:
            raise StreamExists("a live stream has that id: end it, or choose another id")
        pairs = zip(streams, statuses, strict=True)
        return [self._changed(record, status, max_bytes) for record, status in pairs]

    async def _commit(
        self,
        served: ServedModel,
        record: StreamRecord,
        token: str = "",
        *,
        bounded: bool = True,
    ) -> StreamRecord | None:
        """Write a taken stream, and release it. None: the lease is lost.

        token: its new state; empty: there is none.
        bounded: whether the tenant's quota may refuse it.
        """
        max_bytes = self._max_bytes_of(served.tenant) if bounded else _NO_LIMIT
        served.states.mark_stored()
        key = _key(record)
        taken = self._taken[key]
        staying = record.checkpoints or (1, 0)  # they have no gaps
        fields = await self._fields(record, taken.digests, token)
        arguments = [
            *_quota_arguments(record, max_bytes),
            taken.lease,
            staying[0],
            staying[-1],
            *fields,
        ]
        status = await self._run(scripts.COMMIT, key, *arguments)
        if status == Status.LEASE_LOST:
            return None
        changed = self._changed(record, status, max_bytes)
        self._taken.pop(key, None)
        return changed

    def _changed(self, record: StreamRecord, status: Any, max_bytes: int) -> StreamRecord:
        """The stream after a change, or the error that its status means."""
        if status == Status.CHANGED:
            self._remember(record)
            return replace(record, expires_at=self._epoch() + record.idle_seconds)
        if type(status) is int and status >= 0:
            raise over_quota(status, max_bytes)
        raise self._client.bad_reply()

    def _remember(self, record: StreamRecord) -> None:
        """Keep the model and the weights of a stream, so that its next step reads neither."""
        key = _key(record)
        self._models[key] = record.model, record.weights
        self._models.move_to_end(key)
        if len(self._models) > _KNOWN_MODELS:
            self._models.popitem(last=False)

    async def _fields(
        self, record: StreamRecord, digests: StateDigests, token: str
    ) -> list[str | bytes]:
        """The fields of a stream's record and of its new state, if it has one, and their values."""
        parts: list[str | bytes] = []
        if token:
            parts += _state_field(record.step), token
            digests = digests | {record.step: digest(token.encode())}
        sealed = await offload(len(record.reply) > LONG_BYTES, self._records.seal, record, digests)
        for field in sealed.items():
            parts += field
        return parts

    def _open(
        self, tenant: Tenant, stream_id: str, reply: Any, lease: str
    ) -> tuple[StreamRecord, _Taken]:
        """The stream in a reply of `TAKE` or `READ`, and the rest of what that holds."""
        if type(reply) is int and reply in (Status.UNKNOWN, Status.EXPIRED):
            raise missing_stream(expired=reply == Status.EXPIRED)
        head, left_ms, reply_bytes, state = self._parts(reply)
        expires_at = self._epoch() + left_ms / 1000
        record, digests, reply_digest = self._records.open(tenant, stream_id, head, expires_at)
        self._remember(record)
        return record, _Taken(lease, left_ms, digests, reply_digest, reply_bytes, state)

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

    async def _token(self, record: StreamRecord) -> str:
        """The sealed state after the last step of a taken stream; empty before the first."""
        taken = self._taken[_key(record)]
        token, expected = taken.state, taken.digests[record.step]
        taken.state = b""  # used once; free it
        if digest(token) != expected:  # not read yet, or not of the last step
            token = await self._field(record, _state_field(record.step))
            if digest(token) != expected:
                raise self._records.tampered()
        return str(token, "ascii")

    async def _field(self, record: StreamRecord, name: str) -> bytes:
        """A field of a taken stream; raises if another server has taken it meanwhile."""
        key = _key(record)
        arguments = name, self._max_field_bytes, self._taken[key].lease
        reply = await self._run(scripts.READ_FIELD, key, *arguments)
        if reply == Status.LEASE_LOST:
            raise lease_lost()
        if not isinstance(reply, bytes):
            raise self._client.bad_reply()
        return reply

    async def _delete_added(self, copies: list[StreamRecord], adder: str) -> None:
        """Delete those of some new streams that were added. If Redis fails, they expire."""
        calls = [(_names(_key(copy)), [copy.id, f"-{adder}"]) for copy in copies]
        with suppress(StoreUnavailable):
            for begin in range(0, len(calls), _PIPELINE_CALLS):
                batch = calls[begin : begin + _PIPELINE_CALLS]
                owner = copies[begin].tenant.id
                await self._client.run_each(scripts.DELETE, owner, batch, upkeep=True)

    def _max_bytes_of(self, tenant: Tenant) -> int:
        """The bytes that a tenant may have in Redis."""
        return min(tenant.state_bytes, self._part)

    async def _watch_memory(self) -> None:
        """Follow the limit of Redis' memory, and divide it among the tenants."""
        while True:
            memory = await self._client.memory(self._assumed_memory)
            if memory is not None:  # else keep the last one
                limit = memory - memory // _SPARE_PARTS if memory else sum(self._quotas)
                self._part = fair_part(limit, self._quotas)
            await asyncio.sleep(self._timing.memory_seconds)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._timing.renew_seconds)
            calls = [
                (_names(key), [key[1], taken.lease, self._timing.lease_ms])
                for key, taken in self._taken.items()
            ]
            renewals = [
                self._client.run_each(
                    scripts.RENEW, b"", calls[i : i + _PIPELINE_CALLS], upkeep=True
                )
                for i in range(0, len(calls), _PIPELINE_CALLS)
            ]
            await asyncio.gather(*renewals, return_exceptions=True)  # a commit sees a lost lease

    async def _release(self, key: Key, lease: str, idle_ms: int | None = None) -> None:
        call = _names(key), [key[1], lease, "" if idle_ms is None else idle_ms]
        with suppress(StoreUnavailable):  # the lease ends by itself
            await self._client.run(scripts.RELEASE, key[0], call, upkeep=True)

    def _run(self, script: str, key: Key, *arguments: Any) -> Coroutine[Any, Any, Any]:
        return self._client.run(script, key[0], (_names(key), list(arguments)))

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task to its end, whether anybody waits for it or not."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _seal(served: ServedModel, state: Snapshot) -> str:
    long = served.model.network.layout.nbytes > LONG_BYTES
    return await offload(long, served.seal_stored_state, state)


async def _uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Run work to its end. A cancellation of the caller is raised only then."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _overloaded() -> Overloaded:
    return Overloaded("too many bytes of stored replies are being read; retry later")


def _quota_arguments(record: StreamRecord, max_bytes: int) -> list[Any]:
    """The first arguments of `ADD` and `COMMIT`: id, limit of bytes, idle time."""
    return [record.id, max_bytes, record.idle_seconds * 1000]


def _state_field(step: int) -> str:
    return f"state{step}"


def _key(record: StreamRecord) -> Key:
    return record.tenant.id, record.id


def _names(key: Key) -> list[str]:
    """The `KEYS` of a script: the stream, its lease and tombstone, and its tenant's tables."""
    tenant = key[0].hex()
    stream = f"{tenant}:{key[1]}"
    return [
        f"sruserve:stream:{stream}",
        f"sruserve:lease:{stream}",
        f"sruserve:gone:{stream}",
        f"sruserve:sizes:{tenant}",
        f"sruserve:ends:{tenant}",
        f"sruserve:sum:{tenant}",
        f"sruserve:expired:{tenant}",
    ]
