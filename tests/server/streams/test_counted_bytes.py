"""What is counted for a tenant is what is there."""

import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import redis

from sruserve.server.auth import Tenant
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.errors import InternalError, ServeError, StateQuotaExceeded
from sruserve.server.key_entries import KeyEntry
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.streams.memory.store import MemoryStore
from sruserve.server.streams.redis.store import RedisStore
from sruserve.server.streams.service import Streams
from tests.server.streams.conftest import ACME
from tests.server.streams.tenants import counted_in_redis
from tests.server.streams.work import Run, until_rows, write


def _recomputed(store: MemoryStore) -> tuple[int, int, int]:
    """Bytes beside rows, bytes of rows, rows that the engine keeps: of what is there."""
    beside, shared = 0, {}
    for entry in store._entries.values():
        beside += 1024 + len(entry.record.id) + len(entry.record.reply)
        for state in entry.states.values():
            beside += 1024 + (0 if state is None else state.host_bytes)
            if state is not None:
                shared[id(state)] = state
    resident = [each for each in shared.values() if not isinstance(each._state.row, np.ndarray)]  # type: ignore[union-attr]
    return beside, sum(each.nbytes for each in shared.values()), len(resident)


def test_what_is_counted_is_what_is_there_whatever_happens(
    run: Run,
    request: pytest.FixtureRequest,
) -> None:
    tenant = Tenant("counted", KeyEntry(key=ACME, state_bytes=60_000))
    chance = random.Random(7)

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue.with_states("characters").for_tenant(tenant)
        store, refused = streams._store, 0
        port = request.getfixturevalue("redis_port") if isinstance(store, RedisStore) else 0
        client = redis.Redis(port=port, db=6) if port else None
        alive: list[str] = []

        def check() -> None:
            if client is not None:
                counted_in_redis(client, tenant)
                return
            assert isinstance(store, MemoryStore)
            beside, rows, resident = _recomputed(store)
            assert (store._bytes.used, tenant.state_budget.used) == (beside, beside + rows)
            assert sum(each.used for each in store._rows.rooms.values()) == resident

        async def fail(view: Any) -> bytes:
            await write(view)
            raise InternalError("no reply")

        async def act() -> None:
            stream = chance.choice(alive) if alive else ""
            match chance.choice(
                ["create", "begin", "step", "step", "fail", "fork", "rewind", "end", "delete"]
            ):
                case "create":
                    alive.append((await streams.create(served, None)).id)
                case "begin":
                    row = np.zeros(served.model.network.layout.width, np.float32)
                    start = Snapshot(row, 1, pending=40, window=(40,))
                    alive.append((await streams.create(served, start)).id)
                case _ if not stream:
                    pass
                case "step":
                    await streams.step(served, stream, None, chance.randbytes(4), write)
                case "fail":
                    await streams.step(served, stream, None, chance.randbytes(4), fail)
                case "fork":
                    alive.extend(
                        each.id
                        for each in await streams.fork(served, stream, chance.randrange(1, 6))
                    )
                case "rewind":
                    record = await streams.describe(tenant, stream)
                    await streams.rewind(served, stream, chance.choice(record.checkpoints))
                case "end":
                    await streams.step(served, stream, None, chance.randbytes(4), write, last=True)
                case "delete":
                    await streams.delete(tenant, stream)
                    alive.remove(stream)

        for _ in range(250):
            try:
                await act()
            except StateQuotaExceeded:
                refused += 1
                if len(alive) > 6:
                    await streams.delete(tenant, alive.pop())
            except (ServeError, IndexError):
                pass
            check()
        assert refused, "the bound was never met"
        for stream in alive:
            with suppress(ServeError):
                await streams.delete(tenant, stream)
        check()
        if client is not None:
            assert client.get(f"sruserve:sum:{tenant.id.hex()}") == b"0"
            client.close()
        else:
            assert tenant.state_budget.used == 0
        await until_rows(served, 0)
        assert store.state_output in StateOutput

    run(test)


@pytest.mark.parametrize("run", ["memory"], indirect=True)
def test_a_step_whose_state_is_refused_counts_as_little_as_before(run: Run) -> None:
    tenant = Tenant("refused")

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, store = catalogue.with_states("characters").for_tenant(tenant), streams._store
        assert isinstance(store, MemoryStore)
        stream, twin = [(await streams.create(served, None)).id for _ in range(2)]
        for name in (stream, twin):
            await streams.step(served, name, 1, b"a", write)
        used_before, limit = tenant.state_budget.used, tenant.state_budget.limit
        await streams.step(served, twin, 2, b"a", write)
        whole = tenant.state_budget.used - used_before
        before = _recomputed(store)
        for room in (whole - 1, 1):  # for all but its state's row, and not even for that
            tenant.state_budget.limit = tenant.state_budget.used + room
            with pytest.raises(StateQuotaExceeded):
                await streams.step(served, stream, 2, b"a", write)
            assert (store._bytes.used, tenant.state_budget.used) == (before[0], sum(before[:2]))
        tenant.state_budget.limit = limit
        await streams.step(served, stream, 2, b"a", write)
        for name in (stream, twin):
            await streams.delete(tenant, name)
        await until_rows(served, 0)

    run(test)
