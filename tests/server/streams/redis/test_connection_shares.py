"""Connections to Redis are taken in turns of tenants, and some are there for upkeep alone."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import redis

from sruserve.server.errors import StoreUnavailable
from sruserve.server.redis_pool import CONNECTIONS
from sruserve.server.streams.redis import scripts
from sruserve.server.streams.redis.client import Call, RedisClient
from sruserve.server.streams.redis.scripts import Status
from tests.server.streams.redis.generous_timing import GENEROUS

NOTHING: Call = ["none"] * 7, ["none", 100]


def test_commands_of_a_tenant_leave_connections_to_others_and_to_upkeep(
    redis_port: int,
) -> None:
    async def test(client: redis.Redis) -> None:
        link = RedisClient(
            f"redis://127.0.0.1:{redis_port}", replace(GENEROUS, command_seconds=3600)
        )

        def ask(owner: bytes, **kind: bool) -> "asyncio.Task[Any]":
            return asyncio.create_task(link.run(scripts.READ, owner, NOTHING, **kind))

        def asking() -> int:
            """How many scripts Redis has been asked for, and has not run yet."""
            return int(client.info("clients")["blocked_clients"])

        async def open_connections(count: int) -> None:
            async with asyncio.timeout(60):
                while asking() != count:
                    await asyncio.sleep(0.005)

        assert await link.run(scripts.READ, b"a", NOTHING) == Status.UNKNOWN
        half = CONNECTIONS // 2
        client.client_pause(60_000, all=False)
        try:
            greedy = [ask(b"a") for _ in range(10 * half)]
            await open_connections(half)
            others = [ask(b"b"), ask(b"a", upkeep=True), ask(b"", upkeep=True)]
            await open_connections(half + 3)
            link._seconds = 0.01  # of those who come now
            with pytest.raises(StoreUnavailable, match="too many"):
                await ask(b"a")
            link._seconds = 3600
        finally:
            client.client_unpause()
        assert await asyncio.gather(*greedy, *others) == [Status.UNKNOWN] * (10 * half + 3)
        await link.close()

    with redis.Redis(port=redis_port) as client:
        asyncio.run(test(client))
