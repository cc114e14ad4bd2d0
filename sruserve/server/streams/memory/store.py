"""Streams in this process. Their states stay in the engine, copied only to be written."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

from sruserve.server.auth import Tenant
from sruserve.server.clocks import SYSTEM_CLOCKS, Clocks
from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.errors import ServeError, StreamExists, TooManyAtOnce
from sruserve.server.metrics.metrics import stream_metrics
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.streams.memory.entry import Entry
from sruserve.server.streams.memory.expiry import Expiry
from sruserve.server.streams.memory.host_bytes import HostBytes, cost_of
from sruserve.server.streams.memory.state_rooms import StateRooms
from sruserve.server.streams.memory.tombstones import Tombstones
from sruserve.server.streams.record import Key, StreamRecord, key_of
from sruserve.server.streams.shared_state import SharedState
from sruserve.server.streams.shares import fair_shares
from sruserve.server.streams.store import MIN_IDLE_SECONDS, missing_stream

_MAX_AT_ONCE = 256  # streams that expire or end together: more would block the event loop
_EXPIRE_SECONDS = 1.0  # between two searches for idle streams


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
        self._clock, self._epoch = clocks.monotonic, clocks.epoch
        self._entries: dict[Key, Entry] = {}
        self._bytes = fair_shares(max_bytes, quotas, _no_memory)
        self._rows = StateRooms(quotas)
        self._expiry: Expiry[Key] = Expiry()
        self._tombstones = Tombstones(len(quotas))
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
        key = key_of(record)
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
        return self._insert(Entry(record, {0: state}, host_bytes, served.states.life))

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
        key = key_of(record)
        entry = self._entries.get(key)
        if entry is not None and entry.busy:
            entry.busy = False
            entry.release_room()
            idle = entry.record.idle_seconds
            self._idle(key, entry, idle if used else max(entry.left_seconds, MIN_IDLE_SECONDS))

    async def reply(self, record: StreamRecord) -> bytes:
        return record.reply

    def make_room(self, served: ServedModel, record: StreamRecord, max_checkpoints: int) -> int:
        rows, entry = self._rows.of(served.engine), self._entries[key_of(record)]
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
        shared = self._entries[key_of(record)].states[record.step]
        return shared.of(served) if shared is not None else None

    async def commit(
        self, served: ServedModel, record: StreamRecord, end: SharedState | None
    ) -> StreamRecord:
        entry = self._entries[key_of(record)]
        all_states = {**entry.states, record.step: end}
        states = {step: all_states[step] for step in record.checkpoints}
        dropped = [state for step, state in entry.states.items() if step not in states and state]
        freed = sum(state.nbytes for state in dropped if state.refcount == 1)
        bytes_before = entry.bytes.amount
        entry.bytes.resize(cost_of(record, states.values()), freed_rows=freed)
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
        entry = self._entries[key_of(record)]
        states = {step: entry.states[step] for step in record.checkpoints}
        for step, state in entry.states.items():
            if step not in states and state is not None:
                state.release()
        entry.bytes.resize(cost_of(record, states.values()))
        entry.record, entry.states = record, states
        return record

    async def fork(
        self, served: ServedModel, record: StreamRecord, copies: list[StreamRecord]
    ) -> list[StreamRecord]:
        life = served.states.life
        state = self._entries[key_of(record)].states[record.step]
        with ExitStack() as undo:
            entries = []
            for copy in copies:
                entries.append(Entry(copy, {copy.step: state}, self._count(copy, state), life))
                undo.callback(entries[-1].bytes.release)
            undo.pop_all()
        for _ in entries:
            if state is not None:
                state.retain()
        served.states.mark_used()
        return [self._insert(entry) for entry in entries]

    async def delete(self, record: StreamRecord) -> None:
        self._remove(key_of(record))

    async def end(self, engine: JobEngine) -> None:
        self._rows.forget(engine)
        for number, entry in enumerate(list(self._entries.values()), 1):
            if number % _MAX_AT_ONCE == 0:
                await asyncio.sleep(0)
            states = [state for state in entry.states.values() if state is not None]
            for state in states:
                state.end(engine)
            if any(state.lost for state in states):
                entry.bytes.resize(cost_of(entry.record, entry.states.values()))

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
        self._tombstones.add(key)

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(0 if self.expire() else _EXPIRE_SECONDS)

    def _find(self, key: Key) -> Entry:
        self._expire_if_due(key)
        entry = self._entries.get(key)
        if entry is not None:
            return entry
        raise missing_stream(expired=key in self._tombstones)

    def _insert(self, entry: Entry) -> StreamRecord:
        key = key_of(entry.record)
        self._entries[key] = entry
        entry.life.refcount += 1
        self._tombstones.remove(key)
        stream_metrics(entry.record.model).add_streams(1)
        self._idle(key, entry, entry.record.idle_seconds)
        return entry.record

    def _idle(self, key: Key, entry: Entry, seconds: float) -> None:
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

    def _count(self, record: StreamRecord, state: SharedState | None, freed: int = 0) -> HostBytes:
        """Count a new stream with its state, or raise. freed: see `HostBytes.resize`."""
        host_bytes = HostBytes(self._bytes, record.tenant)
        host_bytes.resize(cost_of(record, (state,)), freed)
        return host_bytes


def _no_memory() -> ServeError:
    return TooManyAtOnce(
        "server-held streams use all memory allowed to this API key (SRUSERVE_STREAM_BYTES): "
        "delete streams, or continue with state tokens"
    )
