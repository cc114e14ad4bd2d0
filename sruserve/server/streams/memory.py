"""Streams in this process: their states are the engine's, copied only when they are written."""

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

from sruserve.server.auth import Tenant
from sruserve.server.budget import Budget, Hold
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job import Snapshot, StateOutput
from sruserve.server.errors import ServeError, StreamExists, TooManyAtOnce
from sruserve.server.metrics.metrics import stream_metrics
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.streams.expiry import Expiry
from sruserve.server.streams.shared_state import SharedState
from sruserve.server.streams.shares import fair_shares
from sruserve.server.streams.store import LEAST_LEFT_SECONDS, StreamRecord, missing_stream

Key = tuple[bytes, str]

_MOST_TOMBSTONES = 1 << 16  # expired ids that are told from unknown ones
_MOST_AT_ONCE = 256  # streams that expire or end together: more would hold up the event loop
_LOOK_SECONDS = 1.0  # between two looks for streams that nobody asks for
_STREAM_BYTES = 1024  # of objects, at most, for a stream, with its place in every table
_STATE_BYTES = 1024  # the same for each state of it


class _HostBytes:
    """Host memory of a stream beside the rows of its states: of its tenant's part, and quota."""

    __slots__ = ("_of_part", "_of_quota", "amount")

    def __init__(self, part: Budget, tenant: Tenant) -> None:
        self.amount = 0
        self._of_part = part.hold(owner=tenant.id)
        self._of_quota = tenant.state_budget.hold()

    def resize(self, amount: int, freed: int = 0, freed_rows: int = 0) -> None:
        """Take so many bytes; a refusal changes nothing.

        freed, freed_rows: bytes of another stream, and of rows, that the tenant is about to free.
        """
        self._of_part.resize(amount, freed)
        try:
            self._of_quota.resize(amount, freed + freed_rows)
        except ServeError:
            self._of_part.resize(self.amount)
            raise
        self.amount = amount

    def release(self) -> None:
        self._of_part.release()
        self._of_quota.release()


@dataclass(slots=True, eq=False)
class _Entry:
    """states: by step; None: nothing was read yet. busy: somebody has taken it.

    left: seconds that it still had to live when it was taken.
    room: for the state that the step it is in will end in.
    """

    held: StreamRecord
    states: dict[int, SharedState | None]
    bytes: _HostBytes
    busy: bool = False
    left: float = 0.0
    room: Hold | None = None

    def leave_room(self) -> None:
        if self.room is not None:
            self.room.release()
        self.room = None


class MemoryStore:
    """The streams of a server with one worker. Used by the event loop's thread alone.

    Every tenant has a part of the host memory and of each engine's room, which the streams of
    others cannot take: whatever they do, its own streams go on, and it may create more.

    most_bytes: of host memory for replies, states from tokens, and what Python needs.
    quotas: the most bytes that each tenant may have, in all.
    clock: seconds that never go back.
    """

    state_output = StateOutput.CACHED

    def __init__(
        self, most_bytes: int, quotas: Sequence[int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._quotas = clock, quotas
        self._entries: dict[Key, _Entry] = {}
        self._bytes = fair_shares(most_bytes, quotas, _no_memory)
        self._rows: dict[Engine, Budget] = {}
        self._expiry: Expiry[Key] = Expiry()
        self._tombstones: defaultdict[bytes, OrderedDict[str, None]] = defaultdict(OrderedDict)
        self._most_tombstones = _MOST_TOMBSTONES // max(1, len(quotas))
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._looking = asyncio.create_task(self._look())

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking

    async def add(
        self, served: ServedModel, held: StreamRecord, start: Snapshot | None
    ) -> StreamRecord:
        key = _key(held)
        self.expire()
        self._expire_if_due(key)
        before = self._entries.get(key)
        if before is not None and not before.held.ended:
            raise StreamExists("a live stream has that id: end it, or choose another id")
        kept = SharedState(served, start) if start is not None else None
        freed = before.bytes.amount if before is not None else 0  # it has ended, without states
        counted = self._count(held, kept, freed)
        if kept is not None:
            try:
                kept.count(held.tenant.state_budget.hold(kept.nbytes, beyond=freed))
            except ServeError:
                counted.release()
                raise
        if before is not None:
            self._remove(key)
        return self._insert(_Entry(held, {0: kept}, counted))

    async def read(self, tenant: Tenant, stream_id: str) -> StreamRecord:
        return self._find((tenant.id, stream_id)).held

    async def model(self, tenant: Tenant, stream_id: str) -> str:
        return self._find((tenant.id, stream_id)).held.model

    async def take(
        self,
        tenant: Tenant,
        stream_id: str,
        *,
        step: int | None = None,
        to_free: bool = False,
        unread: bool = False,
    ) -> StreamRecord | None:
        del step, to_free, unread
        key = (tenant.id, stream_id)
        entry = self._find(key)
        entry.busy, entry.left = True, self._expiry.left(key, self._clock())
        self._expiry.remove(key)
        return entry.held

    async def release(self, held: StreamRecord, *, used: bool) -> None:
        key = _key(held)
        entry = self._entries.get(key)
        if entry is not None and entry.busy:
            entry.busy = False
            entry.leave_room()
            idle = entry.held.idle_seconds
            self._idle(key, entry, idle if used else max(entry.left, LEAST_LEFT_SECONDS))

    async def reply(self, held: StreamRecord) -> bytes:
        return held.reply

    def make_room(self, served: ServedModel, held: StreamRecord, most_checkpoints: int) -> int:
        rows, entry = self._rows_of(served.engine), self._entries[_key(held)]
        most = min(most_checkpoints, rows.share)
        staying = held.checkpoints_after(most)
        frees = any(
            kept is not None and kept.frees_room
            for step, kept in entry.states.items()
            if step not in staying
        )
        entry.room = rows.hold(1, held.tenant.id, beyond=int(frees))
        return most

    async def state(self, served: ServedModel, held: StreamRecord) -> Snapshot | None:
        kept = self._entries[_key(held)].states[held.step]
        return kept.of(served) if kept is not None else None

    async def commit(
        self, served: ServedModel, held: StreamRecord, end: SharedState | None
    ) -> StreamRecord:
        del served
        entry = self._entries[_key(held)]
        after = {**entry.states, held.step: end}
        states = {step: after[step] for step in held.checkpoints}
        leaving = [kept for step, kept in entry.states.items() if step not in states and kept]
        freed = sum(kept.nbytes for kept in leaving if kept.users == 1)
        before = entry.bytes.amount
        entry.bytes.resize(_cost(held, states.values()), freed_rows=freed)
        if end is not None:
            try:
                row_bytes = held.tenant.state_budget.hold(end.nbytes, beyond=freed)
            except ServeError:
                entry.bytes.resize(before)
                raise
            end.count(row_bytes, entry.room)
            end.use()
            entry.room = None
        entry.held, entry.states = held, states
        for kept in leaving:
            kept.leave()
        return held

    async def rewind(self, served: ServedModel, held: StreamRecord) -> StreamRecord:
        del served
        entry = self._entries[_key(held)]
        states = {step: entry.states[step] for step in held.checkpoints}
        for step, kept in entry.states.items():
            if step not in states and kept is not None:
                kept.leave()
        entry.bytes.resize(_cost(held, states.values()))
        entry.held, entry.states = held, states
        return held

    async def fork(
        self, served: ServedModel, held: StreamRecord, copies: list[StreamRecord]
    ) -> list[StreamRecord]:
        del served
        kept = self._entries[_key(held)].states[held.step]
        with ExitStack() as undo:
            entries = []
            for copy in copies:
                entries.append(_Entry(copy, {copy.step: kept}, self._count(copy, kept)))
                undo.callback(entries[-1].bytes.release)
            undo.pop_all()
        for _ in entries:
            if kept is not None:
                kept.use()
        return [self._insert(entry) for entry in entries]

    async def delete(self, held: StreamRecord) -> None:
        self._remove(_key(held))

    async def end(self, engine: Engine) -> None:
        self._rows.pop(engine, None)
        for number, entry in enumerate(list(self._entries.values()), 1):
            if number % _MOST_AT_ONCE == 0:
                await asyncio.sleep(0)
            for kept in entry.states.values():
                if kept is not None:
                    kept.end(engine)

    def expire(self) -> bool:
        """Forget some streams that have been idle for too long; whether there may be more."""
        due = self._expiry.take(self._clock(), _MOST_AT_ONCE)
        for key in due:
            self._expire(key)
        return len(due) == _MOST_AT_ONCE

    def _expire_if_due(self, key: Key) -> None:
        """Forget the stream of a key if that is due; `_look` forgets the others."""
        if self._expiry.is_due(key, self._clock()):
            self._expire(key)

    def _expire(self, key: Key) -> None:
        entry = self._entries[key]
        self._remove(key)
        if not entry.held.ended:
            stream_metrics(entry.held.model).expired()
        tenant, stream_id = key
        tombstones = self._tombstones[tenant]
        tombstones[stream_id] = None
        if len(tombstones) > self._most_tombstones:
            tombstones.popitem(last=False)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(0 if self.expire() else _LOOK_SECONDS)

    def _find(self, key: Key) -> _Entry:
        self._expire_if_due(key)
        entry = self._entries.get(key)
        if entry is not None:
            return entry
        raise missing_stream(expired=key[1] in self._tombstones.get(key[0], ()))

    def _insert(self, entry: _Entry) -> StreamRecord:
        key = _key(entry.held)
        self._entries[key] = entry
        self._tombstones[key[0]].pop(key[1], None)
        stream_metrics(entry.held.model).held(1)
        self._idle(key, entry, entry.held.idle_seconds)
        return entry.held

    def _idle(self, key: Key, entry: _Entry, seconds: float) -> None:
        entry.held = replace(entry.held, expires_at=time.time() + seconds)
        self._expiry.put(key, self._clock() + seconds)

    def _remove(self, key: Key) -> None:
        entry = self._entries.pop(key)
        self._expiry.remove(key)
        entry.bytes.release()
        stream_metrics(entry.held.model).held(-1)
        entry.leave_room()
        for kept in entry.states.values():
            if kept is not None:
                kept.leave()

    def _count(self, held: StreamRecord, state: SharedState | None, freed: int = 0) -> _HostBytes:
        """Count a new stream in a state; raises, and counts nothing. freed: as of `_HostBytes`."""
        counted = _HostBytes(self._bytes, held.tenant)
        counted.resize(_cost(held, (state,)), freed)
        return counted

    def _rows_of(self, engine: Engine) -> Budget:
        """The parts of an engine's room for states; each stream may have one in the making.

        Beside them there is room for one state of each tenant in a step that frees another one.
        """
        rows = self._rows.get(engine)
        if rows is None:
            row_bytes = engine.model.network.layout.nbytes
            stream, state = _STREAM_BYTES + _STATE_BYTES, row_bytes + _STATE_BYTES
            wanted = [quota // stream + quota // state for quota in self._quotas]
            most = engine.max_cached_states - len(wanted)
            rows = self._rows[engine] = fair_shares(most, wanted, _no_room)
        return rows


def _key(held: StreamRecord) -> Key:
    return held.tenant.id, held.id


def _cost(held: StreamRecord, states: Iterable[SharedState | None]) -> int:
    """Bytes of host memory of a stream beside the rows of its states."""
    cost = _STREAM_BYTES + len(held.id) + len(held.reply)
    for kept in states:
        cost += _STATE_BYTES + (kept.host_bytes if kept is not None else 0)
    return cost


def _no_memory() -> ServeError:
    return TooManyAtOnce(
        "server-held streams use all memory allowed to this API key (SRUSERVE_STREAM_BYTES): "
        "delete streams, or continue with state tokens"
    )


def _no_room() -> ServeError:
    return TooManyAtOnce(
        "server-held streams use all states of this model allowed to this API key "
        "(SRUSERVE_STATE_HOST_BYTES): delete streams, or continue with state tokens"
    )
