"""Forks in Redis whose clients leave: little is left to do, and others wait for it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from sruserve.server.auth import Tenant
from sruserve.server.key_entries import KeyEntry
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.streams.redis import scripts
from sruserve.server.streams.redis.client import PIPELINE_CALLS as TOGETHER
from sruserve.server.streams.redis.client import Call, RedisClient
from sruserve.server.streams.service import Streams
from tests.server.streams.conftest import ACME
from tests.server.streams.work import Run, write

DB = 6  # of `run`
only_redis = pytest.mark.parametrize("run", ["redis"], indirect=True)


def scripts_run(client: redis.Redis) -> int:
    statistics: Any = client.info("commandstats")
    return int(statistics.get("cmdstat_evalsha", {"calls": 0})["calls"])


@only_redis
def test_a_fork_whose_client_leaves_takes_back_what_it_began_and_others_wait_until_then(
    run: Run,
    redis_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()
    together = RedisClient.run_each

    async def slowly(
        link: RedisClient, script: str, owner: bytes, calls: Sequence[Call], **kind: bool
    ) -> list[Any]:
        done = await together(link, script, owner, calls, **kind)
        if script == scripts.ADD and len(calls) > 1:
            begun.set()
            await goes_on.wait()
        return done

    monkeypatch.setattr(RedisClient, "run_each", slowly)

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        tenant = Tenant("leaves", KeyEntry(key=ACME))
        served = catalogue.with_states("characters").for_tenant(tenant)
        ids = [(await streams.create(served, None)).id for _ in range(5)]
        for each in ids:
            await streams.step(served, each, 1, b"a", write)
        await streams.delete(tenant, (await streams.create(served, None)).id)
        client = redis.Redis(port=redis_port, db=DB)  # which has all scripts now
        before = scripts_run(client)
        forks = [asyncio.create_task(streams.fork(served, each, 256)) for each in ids[:4]]
        await begun.wait()
        async with asyncio.timeout(60):
            while len(client.keys(f"*:stream:{tenant.id.hex()}:*")) < 5 + 4 * TOGETHER:
                await asyncio.sleep(0.005)
        for fork in forks:
            fork.cancel()
        await asyncio.wait(forks)
        assert all(fork.cancelled() for fork in forks), "nobody waits with who has left"
        waiting = [asyncio.create_task(streams.fork(served, ids[4])) for _ in range(20)]
        await asyncio.sleep(0.05)
        for fork in waiting[1:]:
            fork.cancel()
        await asyncio.wait(waiting[1:])
        assert scripts_run(client) - before == 4 + 4 * TOGETHER, (
            "they wait for those that are undone"
        )
        goes_on.set()
        assert len(await waiting[0]) == 1
        while streams._tasks.running:
            await asyncio.wait(set(streams._tasks.running))
        taken, added, taken_back, given_back = 5, 4 * TOGETHER + 1, 4 * TOGETHER, 5
        assert scripts_run(client) - before == taken + added + taken_back + given_back
        assert len(client.keys(f"*:stream:{tenant.id.hex()}:*")) == 6
        sizes: Any = client.hvals(f"sruserve:sizes:{tenant.id.hex()}")
        assert client.get(f"sruserve:sum:{tenant.id.hex()}") == b"%d" % sum(map(int, sizes))
        assert len(await streams.fork(served, ids[4], 40)) == 40
        client.flushdb()
        client.close()

    run(test)
