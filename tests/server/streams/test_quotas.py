"""What a tenant's streams take is counted, all of it, and takes nothing from another tenant."""

import asyncio
import json
import random
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import redis

from sruserve.server.auth import KeyEntry, Tenant
from sruserve.server.engine.job import Snapshot, StateOutput
from sruserve.server.errors import ServeError, StateQuotaExceeded, StateWrongModel, TooManyAtOnce
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.streams.memory import MemoryStore
from sruserve.server.streams.redis.store import RedisStore
from sruserve.server.streams.service import Streams, Work
from sruserve.server.streams.shared_state import SharedState
from sruserve.server.streams.shares import fair_part, fair_shares
from sruserve.server.streams.step_view import StreamView
from sruserve.server.streams.store import StreamRecord
from tests.server.conftest import Serve
from tests.server.http.test_clients_that_leave import until
from tests.server.ports import free_port
from tests.server.streams.conftest import ACME, KEYS, OTHER, OwnRedis, StartRedis, key_of
from tests.server.streams.redis.test_forks import DB, only_redis
from tests.server.streams.test_service import Run, run, until_rows, write  # noqa: F401
from tests.server.streams.test_streams import code
from tests.server.test_tenants import bearer

TWO = json.dumps([{"tenant": "acme", "key": ACME}, {"tenant": "other", "key": OTHER}])
STEP = {"prompt": "a", "max_tokens": 1}


class Client:
    """A tenant of one server."""

    def __init__(self, client: httpx.Client, key: str) -> None:
        self._client, self._headers = client, bearer(key) if key else {}

    def post(self, path: str, /, **body: Any) -> httpx.Response:
        return self._client.post(f"/v1/streams{path}", json=body, headers=self._headers)

    def create(self, **body: Any) -> str:
        reply = self.post("", **body)
        assert reply.status_code == 201, reply.text
        return str(reply.json()["id"])

    def steps(self, stream: str, first: int, last: int) -> None:
        for number in range(first, last + 1):
            reply = self.post(f"/{stream}/steps", step=number, **STEP)
            assert reply.status_code == 200, reply.text

    def delete(self, stream: str) -> httpx.Response:
        return self._client.delete(f"/v1/streams/{stream}", headers=self._headers)

    def greed(self) -> tuple[str, int]:
        """Fork, create and step until all of it is refused; the last code, and how many streams."""
        mine = [self.create()]
        self.steps(mine[0], 1, 1)
        for n in (256, 1):
            while (full := self.post(f"/{mine[0]}/fork", n=n)).status_code == 201:
                mine += [each["id"] for each in full.json()["data"]]
        for each in mine[:20]:
            for number in range(1, 20):
                self.post(f"/{each}/steps", step=number, **STEP)
        while (full := self.post("")).status_code == 201:
            mine.append(full.json()["id"])
        assert full.status_code == 429, full.text
        return code(full), len(mine)


def goes_on(tenant: Client, stream: str, done: int) -> None:
    """A stream goes on for more steps than it has checkpoints, and another one begins."""
    tenant.steps(stream, done + 1, done + 10)
    another = tenant.create()
    tenant.steps(another, 1, 10)
    assert tenant.delete(another).status_code == 200


@pytest.mark.parametrize(
    "bounds",
    [
        {"stream_bytes": 400_000},
        {"state_pool_bytes": 192 * 200, "state_host_bytes": 0},
        {"state_pool_bytes": 192 * 20, "state_host_bytes": 192 * 180},
        {"tenant_stream_bytes": 200_000},
    ],
    ids=lambda bounds: next(iter(bounds)),
)
def test_a_tenant_that_takes_all_it_can_get_leaves_others_theirs(
    serve: Serve, bounds: dict[str, int]
) -> None:
    with serve("characters", api_keys=TWO, state_keys=KEYS, **bounds) as (http, _):
        greedy, other = Client(http, ACME), Client(http, OTHER)
        stream = other.create()
        other.steps(stream, 1, 1)
        if "state_pool_bytes" not in bounds:
            assert greedy.greed()[0] in ("overloaded", "state_quota_exceeded")
        else:  # forks share a state, so streams of their own fill the room
            replies = [greedy.post(f"/{greedy.create()}/steps", step=1, **STEP) for _ in range(200)]
            assert replies[0].status_code == 200
            assert {code(each) for each in replies if each.is_error} == {"overloaded"}
        goes_on(other, stream, 1)


@pytest.mark.parametrize("run", ["memory"], indirect=True)
@pytest.mark.parametrize("numbered", [False, True])
def test_a_tenant_whose_part_of_the_rows_is_full_can_end_its_streams(
    run: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    numbered: bool,
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, store = catalogue["characters"], streams._store
        assert isinstance(store, MemoryStore)
        names = [(await streams.create(served, None)).id for _ in range(3)]
        for name in names:
            await streams.step(served, name, 1, b"a", write)
        monkeypatch.setattr(store._rows[served.engine], "share", 3)
        with pytest.raises(TooManyAtOnce):
            await streams.step(served, names[0], 2, b"b", write)
        number = 2 if numbered else None
        await streams.step(served, names[0], number, b"b", write, last=True)
        assert store._rows[served.engine].held == 2
        await streams.step(served, names[1], 2, b"b", write)
        for name in names[1:] + names[:1] * numbered:
            await streams.delete(served.tenant, name)
        await until_rows(served, 0)

    run(test)


def test_a_tenant_that_fills_its_part_of_redis_leaves_others_theirs(
    serve: Serve, start_redis: StartRedis
) -> None:
    port = free_port()
    with start_redis(port), redis.Redis(port=port) as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + (8 << 20))
        store = f"redis://127.0.0.1:{port}"
        with serve("characters", api_keys=TWO, state_keys=KEYS, store=store) as (http, _):
            greedy, other = Client(http, ACME), Client(http, OTHER)
            stream = other.create()
            other.steps(stream, 1, 1)
            refused, streams = greedy.greed()
            assert (refused, streams > 200) == ("state_quota_exceeded", True)
            goes_on(other, stream, 1)


def test_without_keys_there_is_a_bound_in_redis_too_and_it_covers_what_redis_takes(
    serve: Serve, start_redis: StartRedis
) -> None:
    port, most = free_port(), 2 << 20
    with start_redis(port), redis.Redis(port=port) as client:
        store = f"redis://127.0.0.1:{port}"
        given: dict[str, Any] = {"state_keys": KEYS, "store": store, "tenant_stream_bytes": most}
        with serve("characters", **given) as (http, _):
            anybody = Client(http, "")
            anybody.steps(anybody.create(), 1, 1)
            before = client.info("memory")["used_memory"]
            assert anybody.greed()[0] == "state_quota_exceeded"
            assert client.info("memory")["used_memory"] - before < most


def test_expired_streams_leave_names_in_redis_and_nothing_else(own_redis: OwnRedis) -> None:
    replicas, _, port = own_redis
    streams = [replicas.create(idle_seconds=1) for _ in range(20)]
    with redis.Redis(port=port) as client:
        until(lambda: not client.keys("*:stream:*"))
        until(lambda: code(replicas.get(streams[0])) == "stream_expired")
        kept = replicas.create()
        for stream in streams:
            assert code(replicas.get(stream)) == "stream_expired"
        tables = {f"sruserve:{name}:{'0' * 32}" for name in ("sizes", "ends", "sum", "expired")}
        assert {key.decode() for key in client.scan_iter()} == tables | {key_of(kept)}
        replicas.delete(kept)
        assert client.get(f"sruserve:sum:{'0' * 32}") == b"0"


def test_no_more_names_of_expired_streams_stay_than_are_allowed(
    own_redis: OwnRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas, _, port = own_redis
    stream = replicas.create()
    with redis.Redis(port=port) as client:
        expired = f"sruserve:expired:{'0' * 32}"
        now = time.time() * 1000
        names = {f"old{i}": now - 20_000 + i for i in range((1 << 14) + 10)}
        client.zadd(expired, names)
        assert replicas.step(stream, 1, prompt="a").status_code == 200
        assert client.zcard(expired) == 1 << 14
        assert client.zscore(expired, "old0") is None
        assert code(replicas.get("old10")) == "stream_expired"
        assert code(replicas.get("old9")) == "stream_unknown"


@only_redis
def test_the_names_of_expired_streams_take_a_small_part_of_what_a_tenant_may_have(
    run: Run,  # noqa: F811
    redis_port: int,
) -> None:
    most = 1 << 20
    tenant = Tenant("expires", KeyEntry(key=ACME, state_bytes=most))

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue["characters"].for_tenant(tenant)
        with redis.Redis(port=redis_port, db=DB) as client:
            expired = f"sruserve:expired:{tenant.id.hex()}"
            names = [f"{i:03}" + "ä" * 250 for i in range(300)]
            for name in names:
                await streams.create(served, None, name)
                client.zadd(f"sruserve:ends:{tenant.id.hex()}", {name: time.time() * 1000 - 1})
            held = await streams.create(served, None)
            assert client.zrange(expired, 0, -1) == [name.encode() for name in names[-16:]]
            assert client.memory_usage(expired) < most / 64
            client.zadd(f"sruserve:ends:{tenant.id.hex()}", dict.fromkeys(names[:200], 1))
            for _ in range(3):
                await streams.rewind(served, held.id, 0)
            assert client.zcard(expired) == 16, "what may always be done adds no names"
            client.flushdb()

    run(test)


def test_a_record_of_an_earlier_version_is_counted_anew_with_its_next_step(
    own_redis: OwnRedis,
) -> None:
    replicas, _, port = own_redis
    stream = replicas.create()
    assert replicas.step(stream, 1, prompt="a").status_code == 200
    with redis.Redis(port=port) as client:
        sizes, total = (f"sruserve:{name}:{'0' * 32}" for name in ("sizes", "sum"))
        now = int(client.get(total) or 0)
        client.hset(sizes, stream, 192)  # of one state alone, as it was counted
        client.decrby(total, now - 192)
        assert replicas.post(stream, "rewind", step=0).status_code == 200
        assert replicas.step(stream, 1, prompt="a").status_code == 200
        assert int(client.get(total) or 0) == now
        client.set(key_of("older", "gone"), "", px=60_000)
        assert code(replicas.get("older")) == "stream_expired"


def test_a_redis_that_is_full_takes_no_step_and_loses_none_and_lets_streams_go(
    own_redis: OwnRedis, caplog: pytest.LogCaptureFixture
) -> None:
    replicas, _, port = own_redis
    stream, other = replicas.create(), replicas.create()
    first = replicas.step(stream, 1, **STEP)
    with redis.Redis(port=port) as client:
        client.config_set("maxmemory", 1)
        for _ in range(5):
            for refused in (
                replicas.step(stream, 2, **STEP),
                replicas.post(stream, "fork"),
                replicas.ask("POST", "/v1/streams", json={}),
            ):
                assert (refused.status_code, code(refused)) == (503, "store_unavailable")
                assert "refuses writes" in refused.json()["error"]["message"]
            assert replicas.get(stream).json()["step"] == 1
        assert replicas.delete(other).status_code == 200
        assert not client.exists(key_of(other))
        assert client.keys("*lease*") == []
        client.config_set("maxmemory", 0)
        assert replicas.step(stream, 1, **STEP).content == first.content
        assert replicas.step(stream, 2, **STEP).status_code == 200
        client.config_set("maxmemory", 1)
        assert replicas.post(stream, "rewind", step=1).json()["step"] == 1
    told = [each for each in caplog.messages if "maxmemory" in each]
    assert 1 <= len(told) <= 4, "each request writes a line"


def test_streams_that_expire_together_are_forgotten_in_pieces() -> None:
    now = 0.0

    async def test() -> None:
        nonlocal now
        tenant = Tenant("a")
        store = MemoryStore(1 << 30, [tenant.state_bytes], lambda: now)
        served: Any = type("Served", (), {"tenant": tenant})()
        for i in range(1000):
            await store.add(served, StreamRecord(f"s{i}", tenant, "m", 0, 10, 0), None)
        now = 11.0
        store.expire()
        assert len(store._entries) == 1000 - 256
        with pytest.raises(ServeError, match="idle"):
            await store.read(tenant, "s999")
        while store.expire():
            pass
        assert (len(store._entries), tenant.state_budget.held, store._bytes.held) == (0, 0, 0)

    asyncio.run(test())


def test_the_states_of_an_engine_that_has_ended_are_let_go_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turn, ended = 0, list[int]()
    end = SharedState.end

    def see(kept: SharedState, engine: Any) -> None:
        ended.append(turn)
        end(kept, engine)

    monkeypatch.setattr(SharedState, "end", see)

    async def test() -> None:
        nonlocal turn
        tenant, engine = Tenant("a"), object()
        layout = SimpleNamespace(nbytes=8)
        model = SimpleNamespace(network=SimpleNamespace(layout=layout))
        served: Any = SimpleNamespace(tenant=tenant, engine=engine, model=model, name="m")
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
    now = 0.0

    async def test() -> None:
        nonlocal now
        one, other = Tenant("one"), Tenant("other")
        store = MemoryStore(1 << 30, [1 << 30] * 8192, lambda: now)  # eight ids each
        for tenant, count in ((other, 2), (one, 20)):
            served: Any = type("Served", (), {"tenant": tenant})()
            for i in range(count):
                await store.add(served, StreamRecord(f"s{i}", tenant, "m", 0, 10, 0), None)
        now = 11.0
        store.expire()
        for tenant, stream, why in (
            (one, "s0", "there is no such"),
            (one, "s19", "idle"),
            (other, "s0", "idle"),
        ):
            with pytest.raises(ServeError, match=why):
                await store.read(tenant, stream)

    asyncio.run(test())


def test_parts_are_as_large_as_they_can_be_and_never_more_than_there_is() -> None:
    chance = random.Random(5)
    for _ in range(300):
        limit = chance.randrange(12, 1000)
        wanted = [chance.randrange(1, 400) for _ in range(chance.randrange(1, 12))]
        part = fair_part(limit, wanted)
        taken = sum(min(most, part) for most in wanted)
        assert taken <= limit
        assert taken == sum(wanted) or taken + len(wanted) > limit
    assert fair_part(100, []) == 100


def test_a_tenant_has_a_part_even_where_there_are_more_tenants_than_parts() -> None:
    assert fair_part(320, [1000] * 400) == 1


def test_nobody_has_more_than_a_part_even_alone() -> None:
    shares = fair_shares(10, [10, 10], TooManyAtOnce)
    with pytest.raises(TooManyAtOnce):
        shares.hold(6, "one")
    one, _ = shares.hold(5, "one"), shares.hold(5, "other")
    with pytest.raises(TooManyAtOnce):
        one.grow(1)
    one.release()
    assert shares.held == 5


@pytest.mark.parametrize("run", ["memory"], indirect=True)
@pytest.mark.parametrize("part", [1, 3])
def test_a_stream_alone_goes_on_however_few_rows_its_tenant_may_have(
    run: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    part: int,
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, store = catalogue["characters"], streams._store
        assert isinstance(store, MemoryStore)
        stream = (await streams.create(served, None)).id
        await streams.step(served, stream, 1, b"a", write)
        rows = store._rows[served.engine]
        assert rows.share < served.engine.max_cached_states, (
            "there is room for a step beyond the part"
        )
        monkeypatch.setattr(rows, "share", part)
        for number in range(2, 13):
            await streams.step(served, stream, number, b"a", write)
        held = await streams.describe(served.tenant, stream)
        assert held.checkpoints == tuple(range(13 - part, 13))
        assert rows.held == part
        await until_rows(served, part)
        await streams.delete(served.tenant, stream)

    run(test)


@pytest.mark.parametrize("run", ["memory"], indirect=True)
def test_a_tenant_exceeds_its_part_of_the_rows_by_one_step_at_a_time(
    run: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(view: StreamView) -> bytes:
        await write(view)
        raise ServeError("no reply")

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, store = catalogue["characters"], streams._store
        assert isinstance(store, MemoryStore)

        async def step(stream: str, work: Work = write) -> bytes:
            return await streams.step(served, stream, None, b"a", work, checkpoints=1)

        async def during(view: StreamView) -> bytes:
            with pytest.raises(TooManyAtOnce):
                await step(other)
            return await write(view)

        one, other = [(await streams.create(served, None)).id for _ in range(2)]
        for stream in (one, other):
            await step(stream)
        rows = store._rows[served.engine]
        monkeypatch.setattr(rows, "share", 2)
        await step(one, during)
        with pytest.raises(ServeError, match="no reply"):
            await step(other, fail)
        assert rows.held == 2
        await step(other)
        (fork,) = await streams.fork(served, other)
        with pytest.raises(TooManyAtOnce):  # the fork keeps the state that the step would replace
            await step(other)
        for stream in (one, other, fork.id):
            await streams.delete(served.tenant, stream)
        assert rows.held == 0

    run(test)


def _recomputed(store: MemoryStore) -> tuple[int, int, int]:
    """Bytes beside rows, bytes of rows, rows that the engine keeps: of what is there."""
    beside, kept = 0, {}
    for entry in store._entries.values():
        beside += 1024 + len(entry.held.id) + len(entry.held.reply)
        for state in entry.states.values():
            beside += 1024 + (0 if state is None else state.host_bytes)
            if state is not None:
                kept[id(state)] = state
    resident = [each for each in kept.values() if not isinstance(each._state.row, np.ndarray)]  # type: ignore[union-attr]
    return beside, sum(each.nbytes for each in kept.values()), len(resident)


def _counted_in_redis(client: redis.Redis, tenant: Tenant) -> None:
    sizes: Any = client.hgetall(f"sruserve:sizes:{tenant.id.hex()}")
    for name, size in sizes.items():
        stream: Any = client.hgetall(f"sruserve:stream:{tenant.id.hex()}:{name.decode()}")
        fields = [len(value) for field, value in stream.items() if field != b"by"]
        assert int(size) == 800 + 5 * len(name) + sum(96 + n + n // 4 for n in fields)
    total = int(client.get(f"sruserve:sum:{tenant.id.hex()}") or 0)
    assert total == sum(map(int, sizes.values()))


def test_what_is_counted_is_what_is_there_whatever_happens(
    run: Run,  # noqa: F811
    request: pytest.FixtureRequest,
) -> None:
    tenant = Tenant("counted", KeyEntry(key=ACME, state_bytes=60_000))
    chance = random.Random(7)

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue["characters"].for_tenant(tenant)
        store, refused = streams._store, 0
        port = request.getfixturevalue("redis_port") if isinstance(store, RedisStore) else 0
        client = redis.Redis(port=port, db=6) if port else None
        alive: list[str] = []

        def check() -> None:
            if client is not None:
                _counted_in_redis(client, tenant)
                return
            assert isinstance(store, MemoryStore)
            beside, rows, resident = _recomputed(store)
            assert (store._bytes.held, tenant.state_budget.held) == (beside, beside + rows)
            assert sum(each.held for each in store._rows.values()) == resident

        async def fail(view: Any) -> bytes:
            await write(view)
            raise ServeError("no reply")

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
                    held = await streams.describe(tenant, stream)
                    await streams.rewind(served, stream, chance.choice(held.checkpoints))
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
            assert tenant.state_budget.held == 0
        await until_rows(served, 0)
        assert store.state_output in StateOutput

    run(test)


@pytest.mark.parametrize("run", ["memory"], indirect=True)
def test_a_step_whose_state_is_refused_counts_as_little_as_before(run: Run) -> None:  # noqa: F811
    tenant = Tenant("refused")

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, store = catalogue["characters"].for_tenant(tenant), streams._store
        assert isinstance(store, MemoryStore)
        stream, twin = [(await streams.create(served, None)).id for _ in range(2)]
        for name in (stream, twin):
            await streams.step(served, name, 1, b"a", write)
        held, most = tenant.state_budget.held, tenant.state_budget.limit
        await streams.step(served, twin, 2, b"a", write)
        whole = tenant.state_budget.held - held
        before = _recomputed(store)
        for room in (whole - 1, 1):  # for all but its state's row, and not even for that
            tenant.state_budget.limit = tenant.state_budget.held + room
            with pytest.raises(StateQuotaExceeded):
                await streams.step(served, stream, 2, b"a", write)
            assert (store._bytes.held, tenant.state_budget.held) == (before[0], sum(before[:2]))
        tenant.state_budget.limit = most
        await streams.step(served, stream, 2, b"a", write)
        for name in (stream, twin):
            await streams.delete(tenant, name)
        await until_rows(served, 0)

    run(test)
