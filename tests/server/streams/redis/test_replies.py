"""Long stored replies are read where they are asked for again, so many bytes at a time."""

import asyncio
from typing import Any

import pytest
import redis

from sruserve.server.auth import Tenant
from sruserve.server.errors import Overloaded, StoreUnavailable
from sruserve.server.key_entries import KeyEntry
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.streams.redis import scripts
from sruserve.server.streams.redis.client import Call, RedisClient
from sruserve.server.streams.redis.store import RedisStore
from sruserve.server.streams.service import Streams
from sruserve.server.streams.step_view import StreamView
from tests.server.streams.conftest import ACME, OTHER
from tests.server.streams.redis.test_forks import DB, only_redis
from tests.server.streams.work import Run, write

LONG = 1 << 20
NAMES = {getattr(scripts, name): name for name in ("TAKE", "READ_FIELD", "COMMIT", "RELEASE")}


async def talk(view: StreamView) -> bytes:
    await write(view)
    return b"a" * LONG


def length(answer: Any) -> int:
    return sum(map(length, answer)) if isinstance(answer, list) else len(str(answer))


@only_redis
def test_only_a_repeat_reads_the_stored_reply(
    run: Run,
    redis_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[tuple[str, bool]] = []  # each script, and whether its answer is long
    ask = RedisClient.run

    async def note(link: RedisClient, script: str, owner: bytes, call: Call, **kind: bool) -> Any:
        answer = await ask(link, script, owner, call, **kind)
        commands.append((NAMES[script], length(answer) > LONG))
        return answer

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue.with_states("characters")
        stream = (await streams.create(served, None)).id
        first = await streams.step(served, stream, 1, b"a", talk)
        with monkeypatch.context() as patch, redis.Redis(port=redis_port, db=DB) as client:
            patch.setattr(RedisClient, "run", note)
            assert await streams.step(served, stream, 1, b"a", talk) == first
            assert commands == [("TAKE", False), ("READ_FIELD", True), ("RELEASE", False)]
            commands.clear()
            await streams.step(served, stream, 2, b"a", talk)
            assert commands == [("TAKE", False), ("COMMIT", False)]
            commands.clear()
            await streams.token(served, stream)
            assert commands == [("TAKE", False), ("RELEASE", False)]
            commands.clear()
            await streams.fork(served, stream)
            await streams.rewind(served, stream, 1)
            assert not any(long for _, long in commands)
            client.set(f"sruserve:lease:{'0' * 32}:{stream}", "another", px=60_000)
            client.config_resetstat()
            assert await streams._store.take(served.tenant, stream) is None
            statistics: Any = client.info("commandstats")
            assert "cmdstat_hget" not in statistics, "a busy stream is not read"
            client.delete(f"sruserve:lease:{'0' * 32}:{stream}")
        await streams.delete(served.tenant, stream)

    run(test)


@only_redis
def test_a_server_that_was_paused_blames_no_writer_of_redis_for_a_later_step(
    run: Run, redis_port: int
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, store = catalogue.with_states("characters"), streams._store
        stream = (await streams.create(served, None)).id
        for number in (1, 2):
            await streams.step(served, stream, number, b"a", write)
        record = await store.take(served.tenant, stream, step=2)  # a repeat, or a fork
        assert record is not None
        with redis.Redis(port=redis_port, db=DB) as client:
            client.hset(f"sruserve:stream:{'0' * 32}:{stream}", "by", "-another")
        for reading in (store.reply(record), store.state(served, record)):
            with pytest.raises(StoreUnavailable, match="another replica has taken the stream"):
                await reading
        await store.release(record, used=False)
        await streams.delete(served.tenant, stream)

    run(test)


@only_redis
def test_replies_that_are_read_at_a_time_are_bounded_and_a_tenant_leaves_room(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask, goes_on = RedisClient.run, asyncio.Event()

    async def slowly(link: RedisClient, script: str, owner: bytes, call: Call, **kind: bool) -> Any:
        if script == scripts.READ_FIELD:
            await goes_on.wait()
        return await ask(link, script, owner, call, **kind)

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        store = streams._store
        assert isinstance(store, RedisStore)
        ids: dict[Tenant, list[str]] = {}
        for name, key in (("replies", ACME), ("others", OTHER)):
            tenant = Tenant(name, KeyEntry(key=key))
            served = catalogue.with_states("characters").for_tenant(tenant)
            ids[tenant] = [(await streams.create(served, None)).id for _ in range(5)]
            for each in ids[tenant]:
                await streams.step(served, each, 1, b"a", talk)
        with monkeypatch.context() as patch:
            patch.setattr(RedisClient, "run", slowly)
            commands = {
                tenant: [
                    asyncio.create_task(
                        streams.step(
                            catalogue.with_states("characters").for_tenant(tenant),
                            each,
                            1,
                            b"a",
                            talk,
                        )
                    )
                    for each in its
                ]
                for tenant, its in ids.items()
            }
            every = [each for tasks in commands.values() for each in tasks]
            async with asyncio.timeout(60):
                while sum(each.done() for each in every) < 6 or store._replies.used < 4 * LONG:
                    await asyncio.sleep(0.005)
            assert store._replies.used <= 6 * LONG
            goes_on.set()
            for tasks in commands.values():
                done = await asyncio.gather(*tasks, return_exceptions=True)
                refused = [each for each in done if isinstance(each, Overloaded)]
                assert len(refused) == 3, "two and their seals fit into half of the bound"
                assert sum(isinstance(each, bytes) for each in done) == 2
        assert store._replies.used == 0
        for tenant, its in ids.items():
            for each in its:
                await streams.delete(tenant, each)

    run(test, max_reply_bytes=6 * LONG)
