"""Streams in this process. Their states stay in the engine, copied only to be written."""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

from sruserve.server.auth import Tenant
from sruserve.server.budget import Budget, Hold
from sruserve.server.clocks import SYSTEM_CLOCKS, Clocks
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.errors import ServeError, StreamExists, TooManyAtOnce
from sruserve.server.metrics.metrics import stream_metrics
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.state.life import StateLife
from sruserve.server.streams.expiry import Expiry
from sruserve.server.streams.shared_state import SharedState
from sruserve.server.streams.shares import fair_shares
from sruserve.server.streams.store import MIN_IDLE_SECONDS, StreamRecord, missing_stream

Key = tuple[bytes, str]

_MAX_TOMBSTONES = 1 << 16  # expired ids that are distinguished from unknown ones
_MAX_AT_ONCE = 256  # streams that expire or end together: more would block the event loop
_EXPIRE_SECONDS = 1.0  # between two searches for idle streams
_STREAM_BYTES = 1024  # of objects, at most, for a stream, with its place in every table
_STATE_BYTES = 1024  # the same for each state of it


class _HostBytes:
    """Host memory of a stream without its states' rows, counted in its tenant's part and quota."""

    __slots__ = ("_of_part", "_of_quota", "amount")

    def __init__(self, part: Budget, tenant: Tenant) -> None:
        self.amount = 0
        self._of_part = part.hold(owner=tenant.id)
        self._of_quota = tenant.state_budget.hold()

    def resize(self, amount: int, freed: int = 0, freed_rows: int = 0) -> None:
        """Reserve `amount` bytes instead; a refusal changes nothing.

        freed, freed_rows: bytes of another stream, and of rows, that the tenant is about to free.
        """
        # The quota first: where both are full, its error names the limit of the tenant's key.
        self._of_quota.resize(amount, freed + freed_rows)
        try:
            self._of_part.resize(amount, freed)
        except ServeError:
            self._of_quota.resize(self.amount)
            raise
        self.amount = amount

    def release(self) -> None:
        self._of_part.release()
        self._of_quota.release()


@dataclass(slots=True, eq=False)
class _Entry:
    """A stream and its memory.

    states: by step; None: the stream has read no input yet.
    life: counts the stream, whose states belong to its weights.
    busy: a request has taken the stream.
    left_seconds: its remaining idle time when it was taken.
    room: reserved for the end state of the running step.
    """

    record: StreamRecord
    states: dict[int, SharedState | None]
    bytes: _HostBytes
    life: StateLife
    busy: bool = False
    left_seconds: float = 0.0
    room: Hold | None = None

    def release_room(self) -> None:
        if self.room is not None:
            self.room.release()
        self.room = None


class MemoryStore:
    """The streams of a server with one worker. Used by the event loop's thread alone.

    Each tenant has a part of the host memory and of each engine's room that other tenants cannot
    use. So its streams continue, and it may create more, whatever the others do.

    max_bytes: host memory for replies, states from tokens and Python objects.
    quotas: the maximal total bytes of each tenant.
    """

    state_output = StateOutput.CACHED

    def __init__(
        self, max_bytes: int, quotas: Sequence[int], clocks: Clocks = SYSTEM_CLOCKS
    ) -> None:
        self._clock, self._epoch, self._quotas = clocks.monotonic, clocks.epoch, quotas
        self._entries: dict[Key, _Entry] = {}
        self._bytes = fair_shares(max_bytes, quotas, _no_memory)
        self._rows: dict[JobEngine, Budget] = {}
        self._expiry: Expiry[Key] = Expiry()
        self._tombstones: defaultdict[bytes, OrderedDict[str, None]] = defaultdict(OrderedDict)
        self._max_tombstones = _MAX_TOMBSTONES // max(1, len(quotas))
        self._expiring: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._expiring = asyncio.create_task(self._expire_forever())

    async def stop(self) -> None:
        if self._expiring is not None:
            self._expiring.cancel()
            with suppress(asyncio.CancelledError):
                await self._expiring

    async def add(
        self, served: ServedModel, record: StreamRecord, start: Snapshot | None
    ) -> StreamRecord:
        key = _key(record)
        self.expire()
        self._expire_if_due(key)
        previous = self._entries.get(key)
        if previous is not None and not previous.record.ended:
            raise StreamExists("a live stream has that id: end it, or choose another id")
        state = SharedState(served, start) if start is not None else None
        freed = previous.bytes.amount if previous is not None else 0  # ended, so without states
        host_bytes = self._count(record, state, freed)
        if state is not None:
            try:
                state.count(record.tenant.state_budget.hold(state.nbytes, beyond=freed))
            except ServeError:
                host_bytes.release()
                raise
        if previous is not None:
            self._remove(key)
        served.states.mark_used()
        return self._insert(_Entry(record, {0: state}, host_bytes, served.states.life))

    async def read(self, tenant: Tenant, stream_id: str) -> StreamRecord:
        return self._find((tenant.id, stream_id)).record

    async def model(self, tenant: Tenant, stream_id: str) -> tuple[str, str]:
        record = self._find((tenant.id, stream_id)).record
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
        del step, to_free, unread
        key = (tenant.id, stream_id)
        entry = self._find(key)
        entry.busy, entry.left_seconds = True, self._expiry.remaining_seconds(key, self._clock())
        self._expiry.remove(key)
        return entry.record

    async def release(self, record: StreamRecord, *, used: bool) -> None:
        key = _key(record)
        entry = self._entries.get(key)
        if entry is not None and entry.busy:
            entry.busy = False
            entry.release_room()
            idle = entry.record.idle_seconds
            self._idle(key, entry, idle if used else max(entry.left_seconds, MIN_IDLE_SECONDS))

    async def reply(self, record: StreamRecord) -> bytes:
        return record.reply

    def make_room(self, served: ServedModel, record: StreamRecord, max_checkpoints: int) -> int:
        rows, entry = self._rows_of(served.engine), self._entries[_key(record)]
        checkpoints = min(max_checkpoints, rows.share)
        remaining = record.checkpoints_after(checkpoints)
        frees = any(
            state is not None and state.frees_room
            for step, state in entry.states.items()
            if step not in remaining
        )
        entry.room = rows.hold(1, record.tenant.id, beyond=int(frees))
        return checkpoints

    async def state(self, served: ServedModel, record: StreamRecord) -> Snapshot | None:
        shared = self._entries[_key(record)].states[record.step]
        return shared.of(served) if shared is not None else None

    async def commit(
        self, served: ServedModel, record: StreamRecord, end: SharedState | None
    ) -> StreamRecord:
        entry = self._entries[_key(record)]
        all_states = {**entry.states, record.step: end}
        states = {step: all_states[step] for step in record.checkpoints}
        dropped = [state for step, state in entry.states.items() if step not in states and state]
        freed = sum(state.nbytes for state in dropped if state.refcount == 1)
        bytes_before = entry.bytes.amount
        entry.bytes.resize(_cost(record, states.values()), freed_rows=freed)
        if end is not None:
            try:
                row_bytes = record.tenant.state_budget.hold(end.nbytes, beyond=freed)
            except ServeError:
                entry.bytes.resize(bytes_before)
                raise
            end.count(row_bytes, entry.room)
            end.retain()
            entry.room = None
        entry.record, entry.states = record, states
        served.states.mark_used()
        for state in dropped:
            state.release()
        return record

    async def rewind(self, served: ServedModel, record: StreamRecord) -> StreamRecord:
        del served
        entry = self._entries[_key(record)]
        states = {step: entry.states[step] for step in record.checkpoints}
        for step, state in entry.states.items():
            if step not in states and state is not None:
                state.release()
        entry.bytes.resize(_cost(record, states.values()))
        entry.record, entry.states = record, states
        return record

    async def fork(
        self, served: ServedModel, record: StreamRecord, copies: list[StreamRecord]
    ) -> list[StreamRecord]:
        life = served.states.life
        state = self._entries[_key(record)].states[record.step]
        with ExitStack() as undo:
            entries = []
            for copy in copies:
                entries.append(_Entry(copy, {copy.step: state}, self._count(copy, state), life))
                undo.callback(entries[-1].bytes.release)
            undo.pop_all()
        for _ in entries:
            if state is not None:
                state.retain()
        served.states.mark_used()
        return [self._insert(entry) for entry in entries]

    async def delete(self, record: StreamRecord) -> None:
        self._remove(_key(record))

    async def end(self, engine: JobEngine) -> None:
        self._rows.pop(engine, None)
        for number, entry in enumerate(list(self._entries.values()), 1):
            if number % _MAX_AT_ONCE == 0:
                await asyncio.sleep(0)
            states = [state for state in entry.states.values() if state is not None]
            for state in states:
                state.end(engine)
            if any(state.lost for state in states):
                entry.bytes.resize(_cost(entry.record, entry.states.values()))

    def expire(self) -> bool:
        """Delete some streams whose idle time is over; return whether there may be more of them."""
        due = self._expiry.take(self._clock(), _MAX_AT_ONCE)
        for key in due:
            self._expire(key)
        return len(due) == _MAX_AT_ONCE

    def _expire_if_due(self, key: Key) -> None:
        """Delete the stream of a key if its idle time is over."""
        if self._expiry.is_due(key, self._clock()):
            self._expire(key)

    def _expire(self, key: Key) -> None:
        entry = self._entries[key]
        self._remove(key)
        if not entry.record.ended:
            stream_metrics(entry.record.model).expired()
        tenant, stream_id = key
        tombstones = self._tombstones[tenant]
        tombstones[stream_id] = None
        if len(tombstones) > self._max_tombstones:
            tombstones.popitem(last=False)

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(0 if self.expire() else _EXPIRE_SECONDS)

    def _find(self, key: Key) -> _Entry:
        self._expire_if_due(key)
        entry = self._entries.get(key)
        if entry is not None:
            return entry
        raise missing_stream(expired=key[1] in self._tombstones.get(key[0], ()))

    def _insert(self, entry: _Entry) -> StreamRecord:
        key = _key(entry.record)
        self._entries[key] = entry
        entry.life.refcount += 1
        self._tombstones[key[0]].pop(key[1], None)
        stream_metrics(entry.record.model).add_streams(1)
        self._idle(key, entry, entry.record.idle_seconds)
        return entry.record

    def _idle(self, key: Key, entry: _Entry, seconds: float) -> None:
        entry.record = replace(entry.record, expires_at=self._epoch() + seconds)
        self._expiry.put(key, self._clock() + seconds)

    def _remove(self, key: Key) -> None:
        entry = self._entries.pop(key)
        entry.life.refcount -= 1
        self._expiry.remove(key)
        entry.bytes.release()
        stream_metrics(entry.record.model).add_streams(-1)
        entry.release_room()
        for state in entry.states.values():
            if state is not None:
                state.release()

    def _count(self, record: StreamRecord, state: SharedState | None, freed: int = 0) -> _HostBytes:
        """Count a new stream with its state, or raise. freed: see `_HostBytes.resize`."""
        host_bytes = _HostBytes(self._bytes, record.tenant)
        host_bytes.resize(_cost(record, (state,)), freed)
        return host_bytes

    def _rows_of(self, engine: Engine) -> Budget:
        """The parts of an engine's room for states, with one for the running step of each stream.

        Each tenant has room for one state more, in a step that frees another one.
        """
        rows = self._rows.get(engine)
        if rows is None:
            row_bytes = engine.model.network.layout.nbytes
            stream_bytes, state_bytes = _STREAM_BYTES + _STATE_BYTES, row_bytes + _STATE_BYTES
            demands = [quota // stream_bytes + quota // state_bytes for quota in self._quotas]
            limit = engine.max_cached_states - len(demands)
            rows = self._rows[engine] = fair_shares(limit, demands, _no_room)
        return rows


def _key(record: StreamRecord) -> Key:
    return record.tenant.id, record.id


def _cost(record: StreamRecord, states: Iterable[SharedState | None]) -> int:
    """Host memory of a stream in bytes, without the rows of its states."""
    cost = _STREAM_BYTES + len(record.id) + len(record.reply)
    for state in states:
        cost += _STATE_BYTES + (state.host_bytes if state is not None else 0)
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
