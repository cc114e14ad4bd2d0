"""Streams in this process: their states are the engine's, copied only when they are written."""

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from sruserve.server.api.served import Served
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.jobs import Keep, Snapshot
from sruserve.server.errors import (
    ServeError,
    StateWrongModel,
    StreamExists,
    TooManyAtOnce,
)
from sruserve.server.metrics import stream_metrics
from sruserve.server.streams.expiry import Expiry
from sruserve.server.streams.held import LEAST_LEFT_SECONDS, Held, absent
from sruserve.server.streams.shares import Shares
from sruserve.server.streams.view import forget
from sruserve.server.tenants import Tenant

Key = tuple[bytes, str]

_MOST_GONE = 1 << 16  # expired ids that are told from unknown ones
_MOST_AT_ONCE = 256  # streams that expire or end together: more would hold up the event loop
_LOOK_SECONDS = 1.0  # between two looks for streams that nobody asks for
_STREAM_BYTES = 1024  # of objects, at most, for a stream, with its place in every table
_STATE_BYTES = 1024  # the same for each state of it


class StateSlot:
    """A place among the states that an engine keeps; given back once.

    beyond: how many states the tenant is about to give back for it.
    """

    __slots__ = ("_rows", "_tenant")

    def __init__(self, rows: Shares, tenant: Tenant, beyond: int = 0) -> None:
        rows.take(tenant, 1, beyond)
        self._rows: Shares | None = rows
        self._tenant = tenant

    def release(self) -> None:
        if self._rows is not None:
            self._rows.take(self._tenant, -1)
        self._rows = None


class Kept:
    """A state that streams and their checkpoints share; freed when the last of them lets go.

    nbytes: of its row, wherever it lies.
    host_bytes: of all else that it takes, but for its objects.
    room: the engine's, if the engine keeps it.
    """

    def __init__(self, served: Served, state: Snapshot, room: StateSlot | None = None) -> None:
        self._state: Snapshot | None = state
        self.nbytes = served.model.network.layout.nbytes
        self.host_bytes = state.host_bytes
        self.users = 0
        self._engine: Engine | None = served.engine
        self._tenant, self._room = served.tenant, room

    def of(self, served: Served) -> Snapshot:
        """The state, for the model that it is of; raises `StateWrongModel`."""
        if self._state is None or served.engine is not self._engine:
            raise StateWrongModel(
                f"{served.name} was loaded anew, and the state ended with what was served before: "
                "create another stream"
            )
        return self._state

    @property
    def frees_room(self) -> bool:
        """Whether the engine has room for another state once its only user lets go."""
        return self.users == 1 and self._room is not None

    def use(self) -> None:
        self.users += 1

    def leave(self) -> None:
        self.users -= 1
        if not self.users:
            if self._engine is not None and self._state is not None:
                forget(self._engine, self._state)
            if self._room is not None:
                self._room.release()
            self._tenant.release(self.nbytes)

    def end(self, engine: Engine) -> None:
        """If the state is of an engine that has ended, hold on to neither."""
        if self._engine is engine:
            self._engine = self._state = None


@dataclass(slots=True, eq=False)
class _Entry:
    """states: by step; None: nothing was read yet. busy: somebody has taken it.

    cost: bytes of host memory beside the rows of its states.
    left: seconds that it still had to live when it was taken.
    room: for the state that the step it is in will end in.
    """

    held: Held
    states: dict[int, Kept | None]
    busy: bool = False
    left: float = 0.0
    cost: int = field(init=False)
    room: StateSlot | None = None

    def __post_init__(self) -> None:
        self.cost = _cost(self.held, self.states.values())

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

    keep = Keep.RESIDENT

    def __init__(
        self, most_bytes: int, quotas: Sequence[int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._quotas = clock, quotas
        self._entries: dict[Key, _Entry] = {}
        self._bytes = Shares(most_bytes, quotas, _no_memory)
        self._rows: dict[Engine, Shares] = {}
        self._expiry: Expiry[Key] = Expiry()
        self._gone: defaultdict[bytes, OrderedDict[str, None]] = defaultdict(OrderedDict)
        self._most_gone = _MOST_GONE // max(1, len(quotas))
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._looking = asyncio.create_task(self._look())

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking

    async def add(self, served: Served, held: Held, start: Snapshot | None) -> Held:
        key = _key(held)
        self.expire()
        self._expire_if_due(key)
        before = self._entries.get(key)
        if before is not None and not before.held.ended:
            raise StreamExists("a stream of that id lives already: end it, or take another id")
        kept = Kept(served, start) if start is not None else None
        entry = _Entry(held, {0: kept})
        freed = before.cost if before is not None else 0  # it has ended, and so has no states
        self._charge(held.tenant, entry.cost - freed, kept.nbytes if kept is not None else 0)
        if kept is not None:
            kept.use()
        if before is not None:
            before.cost = 0
            self._remove(key)
        return self._insert(entry)

    async def read(self, tenant: Tenant, stream_id: str) -> Held:
        return self._find((tenant.id, stream_id)).held

    async def take(
        self, tenant: Tenant, stream_id: str, *, to_free: bool = False, unread: bool = False
    ) -> Held | None:
        del to_free, unread
        key = (tenant.id, stream_id)
        entry = self._find(key)
        entry.busy, entry.left = True, self._expiry.left(key, self._clock())
        self._expiry.remove(key)
        return entry.held

    async def give_back(self, held: Held, *, used: bool) -> None:
        key = _key(held)
        entry = self._entries.get(key)
        if entry is not None and entry.busy:
            entry.busy = False
            entry.leave_room()
            idle = entry.held.idle_seconds
            self._idle(key, entry, idle if used else max(entry.left, LEAST_LEFT_SECONDS))

    async def reply(self, held: Held) -> bytes:
        return held.reply

    def make_room(self, served: Served, held: Held, most_checkpoints: int) -> int:
        rows, entry = self._rows_of(served.engine), self._entries[_key(held)]
        most = min(most_checkpoints, rows.part)
        staying = held.checkpoints_after(most)
        frees = any(
            kept is not None and kept.frees_room
            for step, kept in entry.states.items()
            if step not in staying
        )
        entry.room = StateSlot(rows, held.tenant, beyond=int(frees))
        return most

    async def state(self, served: Served, held: Held) -> Snapshot | None:
        kept = self._entries[_key(held)].states[held.step]
        return kept.of(served) if kept is not None else None

    async def commit(self, served: Served, held: Held, end: Snapshot | None) -> Held:
        entry = self._entries[_key(held)]
        new = None if end is None else Kept(served, end, entry.room)
        after = {**entry.states, held.step: new}
        states = {step: after[step] for step in held.checkpoints}
        leaving = [kept for step, kept in entry.states.items() if step not in states and kept]
        cost = _cost(held, states.values())
        freed = sum(kept.nbytes for kept in leaving if kept.users == 1)
        try:
            self._charge(held.tenant, cost - entry.cost, new.nbytes if new else 0, freed)
        except Exception:
            if end is not None:
                forget(served.engine, end)
            raise
        if new is not None:
            entry.room = None
            new.use()
        entry.held, entry.states, entry.cost = held, states, cost
        for kept in leaving:
            kept.leave()
        return held

    async def rewind(self, served: Served, held: Held) -> Held:
        del served
        entry = self._entries[_key(held)]
        states = {step: entry.states[step] for step in held.checkpoints}
        for step, kept in entry.states.items():
            if step not in states and kept is not None:
                kept.leave()
        cost = _cost(held, states.values())
        self._charge(held.tenant, cost - entry.cost)
        entry.held, entry.states, entry.cost = held, states, cost
        return held

    async def fork(self, served: Served, held: Held, copies: list[Held]) -> list[Held]:
        del served
        kept = self._entries[_key(held)].states[held.step]
        entries = [_Entry(copy, {copy.step: kept}) for copy in copies]
        self._charge(held.tenant, sum(entry.cost for entry in entries))
        for _ in entries:
            if kept is not None:
                kept.use()
        return [self._insert(entry) for entry in entries]

    async def delete(self, held: Held) -> None:
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
        gone = self._gone[tenant]
        gone[stream_id] = None
        if len(gone) > self._most_gone:
            gone.popitem(last=False)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(0 if self.expire() else _LOOK_SECONDS)

    def _find(self, key: Key) -> _Entry:
        self._expire_if_due(key)
        entry = self._entries.get(key)
        if entry is not None:
            return entry
        raise absent(expired=key[1] in self._gone.get(key[0], ()))

    def _insert(self, entry: _Entry) -> Held:
        key = _key(entry.held)
        self._entries[key] = entry
        self._gone[key[0]].pop(key[1], None)
        stream_metrics(entry.held.model).held(1)
        self._idle(key, entry, entry.held.idle_seconds)
        return entry.held

    def _idle(self, key: Key, entry: _Entry, seconds: float) -> None:
        entry.held = replace(entry.held, expires_at=time.time() + seconds)
        self._expiry.put(key, self._clock() + seconds)

    def _remove(self, key: Key) -> None:
        entry = self._entries.pop(key)
        self._expiry.remove(key)
        self._charge(entry.held.tenant, -entry.cost)
        stream_metrics(entry.held.model).held(-1)
        entry.leave_room()
        for kept in entry.states.values():
            if kept is not None:
                kept.leave()

    def _charge(self, tenant: Tenant, cost: int, state_bytes: int = 0, freed: int = 0) -> None:
        """Count what a tenant has more, or less, of everything; all of it or nothing.

        cost: bytes beside the rows of states. freed: bytes of rows that it is about to let go.
        """
        self._bytes.take(tenant, cost)
        try:
            tenant.hold(cost + state_bytes, instead_of=freed)
        except ServeError:
            self._bytes.take(tenant, -cost)
            raise

    def _rows_of(self, engine: Engine) -> Shares:
        """The parts of an engine's room for states; each stream may have one in the making.

        Beside them there is room for one state of each tenant in a step that frees another one.
        """
        rows = self._rows.get(engine)
        if rows is None:
            row_bytes = engine.model.network.layout.nbytes
            stream, state = _STREAM_BYTES + _STATE_BYTES, row_bytes + _STATE_BYTES
            wanted = [quota // stream + quota // state for quota in self._quotas]
            most = engine.most_kept - len(wanted)
            rows = self._rows[engine] = Shares(most, wanted, _no_room)
        return rows


def _key(held: Held) -> Key:
    return held.tenant.id, held.id


def _cost(held: Held, states: Iterable[Kept | None]) -> int:
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
