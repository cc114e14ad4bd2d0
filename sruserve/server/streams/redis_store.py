"""Streams in Redis: any replica serves any of them, and a restart loses none.

A stream is one hash: `head` (what is known of it) and `reply` (to its last step, which is read only
where that is asked again), both sealed, and the state after each of its checkpoints, sealed as a
state token. Whoever works on a stream has its lease, renewed every second; a replica that dies
loses it after five. Who is late by more keeps the stream until another takes it, and changes
nothing after that.
"""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sruserve.server.api.served import Served
from sruserve.server.budget import Budget
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.jobs import Keep, Snapshot
from sruserve.server.errors import Overloaded, StateRefused, StoreUnavailable, StreamExists
from sruserve.server.offload import LONG_BYTES, off_loop
from sruserve.server.seeds import random_bytes
from sruserve.server.state_token import Envelope
from sruserve.server.streams import scripts
from sruserve.server.streams.held import LEAST_LEFT_SECONDS, Held, absent, taken_over
from sruserve.server.streams.record import Marks, Records, mark
from sruserve.server.streams.redis_link import Call, RedisLink
from sruserve.server.streams.shares import fair_part
from sruserve.server.tenants import Tenant, over_quota

Key = tuple[bytes, str]
T = TypeVar("T")

_LEASE_MS = 5000  # longer than Redis may stop for, and the renewal before that
_RENEW_SECONDS = 1.0
_LONG_ROW = 16 << 10  # numbers; sealing more would hold up the event loop
_HEAD_BYTES = 64 << 10
_SEAL_BYTES = 1 << 10  # beyond what is sealed
_TOGETHER, _TOGETHER_BYTES = 8, 1 << 20  # streams that one message changes, in some milliseconds
_REPLY_BYTES = 64 << 20  # that are read at a time; of a tenant, half
_LOOK_SECONDS = 10.0  # between two looks at Redis' memory
_ANY = -1  # bytes
_OTHERS = 4  # one part in so many of Redis' memory is for its clients, and others' data


@dataclass(frozen=True, slots=True)
class _Taken:
    """What this server knows of a stream that it works on.

    left_ms: how long it still had to live.
    reply, reply_bytes: the mark of its reply, and how long that is.
    """

    lease: str
    left_ms: int
    marks: Marks
    reply: str
    reply_bytes: int


class RedisStore:
    """The streams of all servers that have the same Redis and the same state keys.

    most_bytes: of a reply or a state; what is longer in Redis was changed there, and is not read.
    quotas: the most bytes that each tenant may have in Redis. A Redis that has less memory than all
        of these is divided among them, so that no tenant fills it.
    hidden: the memory of a Redis that refuses to say it, if it is to be divided; 0: it has enough.
    """

    keep = Keep.SNAPSHOT

    def __init__(
        self,
        url: str,
        envelope: Envelope,
        most_bytes: int,
        quotas: Sequence[int],
        hidden: int = 0,
    ) -> None:
        self._link = RedisLink(url)
        self._records = Records(envelope)
        self._most_bytes = most_bytes + _SEAL_BYTES
        self._quotas, self._part = quotas, max(quotas)
        self._hidden = hidden if len(quotas) > 1 else 0
        self._replies = Budget(_REPLY_BYTES, _overloaded, share=_REPLY_BYTES // 2)
        self._taken: dict[Key, _Taken] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._soon(self._renew())
        self._soon(self._divide())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._link.close()

    async def add(self, served: Served, held: Held, start: Snapshot | None) -> Held:
        token = "" if start is None else await _seal(served, start)
        (added,) = await self._add(served, [held], token, random_bytes().hex())
        return added

    async def read(self, tenant: Tenant, stream_id: str) -> Held:
        key = (tenant.id, stream_id)
        found = await self._run(scripts.READ, key, stream_id, _HEAD_BYTES)
        held, _ = self._open(tenant, stream_id, found, lease="")
        return held

    async def take(
        self, tenant: Tenant, stream_id: str, *, to_free: bool = False, unread: bool = False
    ) -> Held | None:
        key, lease = (tenant.id, stream_id), random_bytes().hex()
        terms = [stream_id, lease, _LEASE_MS, _HEAD_BYTES, int(to_free)]
        try:
            found = await self._run(scripts.TAKE, key, *terms)
            if found == [scripts.BUSY]:
                return None
            try:
                held, self._taken[key] = self._open(tenant, stream_id, found, lease)
            except StateRefused:
                if not unread:
                    raise
                held = Held(stream_id, tenant, model="", seed=0, idle_seconds=0, created=0)
                self._taken[key] = _Taken(lease, found[2], {}, "", 0)
        except BaseException:  # whoever left may have taken it, or Redis does so later
            self._soon(self._let_go(key, lease))
            raise
        return held

    async def give_back(self, held: Held, *, used: bool) -> None:
        taken = self._taken.pop(_key(held), None)
        if taken is None:
            return
        least_ms = int(1000 * LEAST_LEFT_SECONDS)
        idle_ms = held.idle_seconds * 1000 if used else max(taken.left_ms, least_ms)
        giving = self._soon(self._let_go(_key(held), taken.lease, idle_ms, held.id))
        if not self._link.away:  # else it may take as long as what has just failed
            await asyncio.shield(giving)

    async def reply(self, held: Held) -> bytes:
        taken = self._taken[_key(held)]
        long = taken.reply_bytes
        with self._replies.hold(min(long, self._most_bytes), held.tenant.owner):
            sealed = await self._field(held, "reply")
            opening = self._records.open_reply, held, sealed, taken.reply
            return await off_loop(long > LONG_BYTES, *opening)

    def make_room(self, served: Served, held: Held, most_checkpoints: int) -> int:
        del served, held  # a commit finds out whether there is room
        return most_checkpoints

    async def state(self, served: Served, held: Held) -> Snapshot | None:
        token = await self._token(held)
        if not token:
            return None
        return await off_loop(len(token) > 4 * _LONG_ROW, served.open_state, token)

    async def commit(self, served: Served, held: Held, end: Snapshot | None) -> Held | None:
        if end is None:
            return await self._commit(served, held, {})
        return await self._commit(served, held, {held.step: await _seal(served, end)})

    async def rewind(self, served: Served, held: Held) -> Held | None:
        return await self._commit(served, held, {}, bounded=False)

    async def fork(self, served: Served, held: Held, copies: list[Held]) -> list[Held]:
        token, adder = await self._token(held), random_bytes().hex()
        few = max(1, min(_TOGETHER, _TOGETHER_BYTES // (len(token) + 1)))
        added: list[Held] = []
        begun = 0
        try:
            while begun < len(copies):
                part = copies[begun : begun + few]
                begun += len(part)
                added += await _to_its_end(self._add(served, part, token, adder))
            return added
        except BaseException:
            await _to_its_end(self._take_back(copies[:begun], adder))
            raise

    async def delete(self, held: Held) -> None:
        lease = self._taken[_key(held)].lease
        done = await self._run(scripts.DELETE, _key(held), lease, held.id)
        if done == scripts.NOT_MINE:
            raise taken_over()
        if done != scripts.ADDED:
            raise self._link.garbled()
        self._taken.pop(_key(held))

    async def end(self, engine: Engine) -> None:
        del engine  # its states are in Redis, and another one of the same model continues them

    async def _add(self, served: Served, streams: list[Held], token: str, adder: str) -> list[Held]:
        """Add streams that are all in the same state.

        adder: a name that no other call has: what is added twice under it is added once.
        """
        most = self._most_of(served.tenant)
        calls: list[Call] = []
        for held in streams:
            fields = await self._fields(held, {}, {held.step: token} if token else {})
            calls.append((_names(_key(held)), [*_terms(held, most), adder, *_flat(fields)]))
        done = await self._link.run_each(scripts.ADD, served.tenant.id, calls)
        if scripts.EXISTS in done:
            raise StreamExists("a stream of that id lives already: end it, or take another id")
        return [self._changed(held, each, most) for held, each in zip(streams, done, strict=True)]

    async def _commit(
        self, served: Served, held: Held, tokens: dict[int, str], *, bounded: bool = True
    ) -> Held | None:
        """Make a taken stream what `held` says, with the states that are new.

        bounded: it may be refused because it takes too much.
        """
        most = self._most_of(served.tenant) if bounded else _ANY
        taken = self._taken[_key(held)]
        staying = [_state_field(step) for step in held.checkpoints]
        fields = await self._fields(held, taken.marks, tokens)
        arguments = [*_terms(held, most), taken.lease, len(staying), *staying, *_flat(fields)]
        done = await self._run(scripts.COMMIT, _key(held), *arguments)
        if done == scripts.NOT_MINE:
            return None
        changed = self._changed(held, done, most)
        self._taken.pop(_key(held), None)
        return changed

    def _changed(self, held: Held, done: Any, most: int) -> Held:
        """A stream after what Redis says of its change."""
        if done == scripts.ADDED:
            return replace(held, expires_at=time.time() + held.idle_seconds)
        if type(done) is int and done >= 0:
            raise over_quota(done, most)
        raise self._link.garbled()

    async def _fields(
        self, held: Held, marks: Marks, tokens: dict[int, str]
    ) -> dict[str, str | bytes]:
        """The record of a stream, and its states that are new."""
        marks = marks | {step: mark(token.encode()) for step, token in tokens.items()}
        sealed = await off_loop(len(held.reply) > LONG_BYTES, self._records.seal, held, marks)
        return sealed | {_state_field(step): token for step, token in tokens.items()}

    def _open(self, tenant: Tenant, stream_id: str, found: Any, lease: str) -> tuple[Held, _Taken]:
        """A stream of which Redis has told: how it was found, head, time left, length of reply."""
        match found:
            case [scripts.UNKNOWN | scripts.EXPIRED as why]:
                raise absent(expired=why == scripts.EXPIRED)
            case [scripts.FOUND, bytes(head), int(left_ms), int(reply_bytes)]:
                held, marks, reply = self._records.open(tenant, stream_id, head)
                held = replace(held, expires_at=time.time() + left_ms / 1000)
                return held, _Taken(lease, left_ms, marks, reply, reply_bytes)
            case _:
                raise self._link.garbled()

    async def _token(self, held: Held) -> str:
        """The sealed state after the last step of a taken stream; empty: nothing was read yet."""
        token = await self._field(held, _state_field(held.step))
        if mark(token) != self._taken[_key(held)].marks[held.step]:
            raise self._records.tampered()
        return str(token, "ascii")

    async def _field(self, held: Held, name: str) -> bytes:
        found = await self._run(scripts.READ_FIELD, _key(held), name, self._most_bytes)
        if not isinstance(found, bytes):
            raise self._link.garbled()
        return found

    async def _take_back(self, copies: list[Held], adder: str) -> None:
        """Forget those of some new streams that were added; if Redis is away they expire."""
        calls = [(_names(_key(copy)), [f"-{adder}", copy.id]) for copy in copies]
        with suppress(StoreUnavailable):
            for begin in range(0, len(calls), _TOGETHER):
                few = calls[begin : begin + _TOGETHER]
                owner = copies[begin].tenant.id
                await self._link.run_each(scripts.DELETE, owner, few, upkeep=True)

    def _most_of(self, tenant: Tenant) -> int:
        """The most bytes that a tenant may have in Redis."""
        return min(tenant.state_bytes, self._part)

    async def _divide(self) -> None:
        """See how much memory Redis may have, and what a part of it is."""
        while True:
            memory = await self._link.memory(self._hidden)
            if memory is not None:  # else it is what it was
                limit = memory - memory // _OTHERS if memory else sum(self._quotas)
                self._part = fair_part(limit, self._quotas)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            calls = [
                (_names(key), [taken.lease, _LEASE_MS, key[1]])
                for key, taken in self._taken.items()
            ]
            renewals = [
                self._link.run_each(scripts.RENEW, b"", calls[i : i + _TOGETHER], upkeep=True)
                for i in range(0, len(calls), _TOGETHER)
            ]
            await asyncio.gather(*renewals, return_exceptions=True)  # the commit finds out

    async def _let_go(self, key: Key, *arguments: Any) -> None:
        call = _names(key), list(arguments)
        with suppress(StoreUnavailable):  # the lease ends by itself
            await self._link.run(scripts.GIVE_BACK, key[0], call, upkeep=True)

    async def _run(self, script: str, key: Key, *arguments: Any) -> Any:
        return await self._link.run(script, key[0], (_names(key), list(arguments)))

    def _soon(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do what goes on whether somebody waits for it or not."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _seal(served: Served, state: Snapshot) -> str:
    long = served.model.network.layout.width > _LONG_ROW
    return await off_loop(long, served.seal_held_state, state)


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Do what a caller that leaves cannot stop, but learns of only when it is over."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _overloaded() -> Overloaded:
    return Overloaded("too many bytes of stored replies are being read; retry later")


def _terms(held: Held, most: int) -> list[Any]:
    """The stream's id, what its tenant may have, and how long it may idle."""
    return [held.id, most, held.idle_seconds * 1000]


def _flat(fields: dict[str, Any]) -> list[Any]:
    return [part for pair in fields.items() for part in pair]


def _state_field(step: int) -> str:
    return f"state{step}"


def _key(held: Held) -> Key:
    return held.tenant.id, held.id


def _names(key: Key) -> list[str]:
    """The keys in Redis: the stream, its lease and tombstone; then the tables of its tenant."""
    tenant, stream_id = key[0].hex(), key[1]
    of_stream = [f"sruserve:{what}:{tenant}:{stream_id}" for what in ("stream", "lease", "gone")]
    tables = ("sizes", "ends", "sum", "expired")
    return of_stream + [f"sruserve:{what}:{tenant}" for what in tables]
