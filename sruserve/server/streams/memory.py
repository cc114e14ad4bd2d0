"""Streams in this process: their states are the engine's, copied only when they are written."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from sruserve.server.api.served import Served
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.jobs import Keep, Snapshot
from sruserve.server.errors import (
    Overloaded,
    StateWrongModel,
    StreamExists,
)
from sruserve.server.metrics import stream_metrics
from sruserve.server.streams.expiry import Expiry
from sruserve.server.streams.held import Held, absent
from sruserve.server.streams.view import forget
from sruserve.server.tenants import Tenant

Key = tuple[bytes, str]

_MOST_GONE = 1 << 16  # expired ids that are told from unknown ones
_LOOK_SECONDS = 1.0  # between two looks for streams that nobody asks for
_STATE_BYTES = 1024  # of objects, about, for each state of a stream


class Kept:
    """A state that streams and their checkpoints share; freed when the last of them lets go."""

    def __init__(self, served: Served, state: Snapshot) -> None:
        self._state: Snapshot | None = state
        self.nbytes = served.model.network.layout.nbytes
        self.host_bytes = state.row.nbytes if isinstance(state.row, np.ndarray) else 0
        self.users = 0
        self._engine: Engine | None = served.engine
        self._tenant = served.tenant

    def of(self, served: Served) -> Snapshot:
        """The state, for the model that it is of; raises `StateWrongModel`."""
        if self._state is None or served.engine is not self._engine:
            raise StateWrongModel(
                f"{served.name} was loaded anew, and the state ended with what was served before: "
                "create another stream"
            )
        return self._state

    def use(self) -> None:
        self.users += 1

    def leave(self) -> None:
        self.users -= 1
        if not self.users:
            if self._engine is not None and self._state is not None:
                forget(self._engine, self._state)
            self._tenant.release(self.nbytes)

    def end(self, engine: Engine) -> None:
        """If the state is of an engine that has ended, hold on to neither."""
        if self._engine is engine:
            self._engine = self._state = None


@dataclass(slots=True, eq=False)
class _Entry:
    """states: by step; None: nothing was read yet. busy: somebody has taken it."""

    held: Held
    states: dict[int, Kept | None]
    busy: bool = False
    cost: int = field(init=False)

    def __post_init__(self) -> None:
        self.cost = _cost(self.held, self.states.values())


class MemoryStore:
    """The streams of a server with one worker. Used by the event loop's thread alone.

    most_bytes: of host memory for replies, states from tokens, and what Python needs.
    clock: seconds that never go back.
    """

    keep = Keep.RESIDENT

    def __init__(self, most_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_bytes, self._clock = most_bytes, clock
        self._entries: dict[Key, _Entry] = {}
        self._bytes = 0
        self._expiry: Expiry[Key] = Expiry()
        self._gone: OrderedDict[Key, None] = OrderedDict()
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._looking = asyncio.create_task(self._look())

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking

    async def add(self, served: Served, held: Held, start: Snapshot | None) -> Held:
        self.expire()
        key = _key(held)
        before = self._entries.get(key)
        if before is not None and not before.held.ended:
            raise StreamExists("a stream of that id lives already: end it, or take another id")
        kept = None
        if start is not None:
            kept = Kept(served, start)
        entry = _Entry(held, {0: kept})
        self._charge(entry.cost)
        try:
            if kept is not None:
                served.tenant.hold(kept.nbytes)
                kept.use()
        except Exception:
            self._charge(-entry.cost)
            raise
        if before is not None:
            self._remove(key)
        return self._insert(entry)

    async def read(self, tenant: Tenant, stream_id: str) -> Held:
        return self._find((tenant.id, stream_id)).held

    async def take(self, tenant: Tenant, stream_id: str) -> Held | None:
        key = (tenant.id, stream_id)
        entry = self._find(key)
        entry.busy = True
        self._expiry.remove(key)
        return entry.held

    async def give_back(self, held: Held) -> None:
        key = _key(held)
        entry = self._entries.get(key)
        if entry is not None and entry.busy:
            entry.busy = False
            self._idle(key, entry)

    async def state(self, served: Served, held: Held) -> Snapshot | None:
        kept = self._entries[_key(held)].states[held.step]
        return kept.of(served) if kept is not None else None

    async def commit(self, served: Served, held: Held, end: Snapshot) -> Held:
        entry = self._entries[_key(held)]
        new = Kept(served, end)
        after = {**entry.states, held.step: new}
        states = {step: after[step] for step in held.checkpoints}
        leaving = [kept for step, kept in entry.states.items() if step not in states and kept]
        cost = _cost(held, states.values())
        try:
            self._charge(cost - entry.cost)
            try:
                freed = sum(kept.nbytes for kept in leaving if kept.users == 1)
                served.tenant.hold(new.nbytes, instead_of=freed)
            except Exception:
                self._charge(entry.cost - cost)
                raise
        except Exception:
            forget(served.engine, end)
            raise
        new.use()
        entry.held, entry.states, entry.cost = held, states, cost
        for kept in leaving:
            kept.leave()
        if held.ended:
            new.leave()
        return held

    async def rewind(self, served: Served, held: Held) -> Held:
        del served
        entry = self._entries[_key(held)]
        states = {step: entry.states[step] for step in held.checkpoints}
        for step, kept in entry.states.items():
            if step not in states and kept is not None:
                kept.leave()
        cost = _cost(held, states.values())
        self._charge(cost - entry.cost)
        entry.held, entry.states, entry.cost = held, states, cost
        return held

    async def fork(self, served: Served, held: Held, copies: list[Held]) -> list[Held]:
        del served
        kept = self._entries[_key(held)].states[held.step]
        entries = [_Entry(copy, {copy.step: kept}) for copy in copies]
        self._charge(sum(entry.cost for entry in entries))
        for _ in entries:
            if kept is not None:
                kept.use()
        return [self._insert(entry) for entry in entries]

    async def delete(self, held: Held) -> None:
        self._remove(_key(held))

    def end(self, engine: Engine) -> None:
        for entry in self._entries.values():
            for kept in entry.states.values():
                if kept is not None:
                    kept.end(engine)

    def expire(self) -> None:
        """Forget the streams that have been idle for too long."""
        for key in self._expiry.take(self._clock()):
            entry = self._entries[key]
            self._remove(key)
            if not entry.held.ended:
                stream_metrics(entry.held.model).expired()
            self._gone[key] = None
            if len(self._gone) > _MOST_GONE:
                self._gone.popitem(last=False)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.expire()

    def _find(self, key: Key) -> _Entry:
        self.expire()
        entry = self._entries.get(key)
        if entry is not None:
            return entry
        raise absent(expired=key in self._gone)

    def _insert(self, entry: _Entry) -> Held:
        key = _key(entry.held)
        self._entries[key] = entry
        self._gone.pop(key, None)
        stream_metrics(entry.held.model).held(1)
        self._idle(key, entry)
        return entry.held

    def _idle(self, key: Key, entry: _Entry) -> None:
        seconds = entry.held.idle_seconds
        entry.held = replace(entry.held, expires_at=time.time() + seconds)
        self._expiry.put(key, self._clock() + seconds)

    def _remove(self, key: Key) -> None:
        entry = self._entries.pop(key)
        self._expiry.remove(key)
        self._charge(-entry.cost)
        stream_metrics(entry.held.model).held(-1)
        for kept in entry.states.values():
            if kept is not None:
                kept.leave()

    def _charge(self, cost: int) -> None:
        if cost > 0 and self._bytes + cost > self._most_bytes:
            raise Overloaded(
                "the streams that this server holds are as many as SRUSERVE_STREAM_BYTES allows: "
                "delete some, or continue with state tokens"
            )
        self._bytes += cost


def _key(held: Held) -> Key:
    return held.tenant.id, held.id


def _cost(held: Held, states: Iterable[Kept | None]) -> int:
    return len(held.reply) + sum(
        _STATE_BYTES + (kept.host_bytes if kept is not None else 0) for kept in (None, *states)
    )
