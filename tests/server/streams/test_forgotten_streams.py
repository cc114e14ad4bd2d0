"""Many streams that end together are let go in pieces."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sruserve.server.auth import Tenant
from sruserve.server.errors import ServeError, StateWrongModel
from sruserve.server.state.life import StateLife
from sruserve.server.streams.memory.store import MemoryStore
from sruserve.server.streams.record import StreamRecord
from sruserve.server.streams.service import Streams
from sruserve.server.streams.shared_state import SharedState
from tests.server.hand_clock import HandClock

STATES = SimpleNamespace(life=StateLife(0), mark_used=lambda: None)


def test_streams_that_expire_together_are_forgotten_in_pieces() -> None:
    clock = HandClock()

    async def test() -> None:
        tenant = Tenant("a")
        store = MemoryStore(1 << 30, [tenant.state_bytes], clock.clocks)
        served: Any = SimpleNamespace(tenant=tenant, states=STATES)
        for i in range(1000):
            await store.add(served, StreamRecord(f"s{i}", tenant, "m", 0, 10, 0), None)
        clock.now += 11
        store.expire()
        assert len(store._entries) == 1000 - 256
        with pytest.raises(ServeError, match="idle"):
            await store.read(tenant, "s999")
        while store.expire():
            pass
        assert (len(store._entries), tenant.state_budget.used, store._bytes.used) == (0, 0, 0)

    asyncio.run(test())


def test_the_states_of_an_engine_that_has_ended_are_let_go_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turn, ended = 0, list[int]()
    end = SharedState.end

    def see(shared: SharedState, engine: Any) -> None:
        ended.append(turn)
        end(shared, engine)

    monkeypatch.setattr(SharedState, "end", see)

    async def test() -> None:
        nonlocal turn
        tenant, engine = Tenant("a"), object()
        layout = SimpleNamespace(nbytes=8)
        model = SimpleNamespace(network=SimpleNamespace(layout=layout))
        served: Any = SimpleNamespace(
            tenant=tenant, engine=engine, model=model, name="m", states=STATES
        )
        store: Any = MemoryStore(1 << 30, [1 << 30])
        streams = Streams(
            store, checkpoints=1, idle_seconds=9, reply_bytes=1, waiting_bytes=1, tenants=1
        )
        start: Any = SimpleNamespace(host_bytes=1)
        for i in range(1000):
            await store.add(served, StreamRecord(f"s{i}", tenant, "m", 0, 10, 0), start)
        streams.end(served.engine)
        while len(ended) < 1000:
            turn += 1
            await asyncio.sleep(0)
        assert max(ended.count(each) for each in set(ended)) <= 256
        for entry in store._entries.values():
            with pytest.raises(StateWrongModel):
                entry.states[0].of(served)

    asyncio.run(asyncio.wait_for(test(), 60))


def test_expired_ids_of_a_tenant_push_out_only_its_own() -> None:
    clock = HandClock()

    async def test() -> None:
        one, other = Tenant("one"), Tenant("other")
        store = MemoryStore(1 << 30, [1 << 30] * 8192, clock.clocks)  # eight ids each
        for tenant, count in ((other, 2), (one, 20)):
            served: Any = SimpleNamespace(tenant=tenant, states=STATES)
            for i in range(count):
                await store.add(served, StreamRecord(f"s{i}", tenant, "m", 0, 10, 0), None)
        clock.now += 11
        store.expire()
        for tenant, stream, why in (
            (one, "s0", "there is no such"),
            (one, "s19", "idle"),
            (other, "s0", "idle"),
        ):
            with pytest.raises(ServeError, match=why):
                await store.read(tenant, stream)

    asyncio.run(test())
