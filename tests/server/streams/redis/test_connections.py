"""Connections to Redis that end, and calls that are cancelled."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
import uvloop

from sruserve.server.errors import StoreUnavailable
from sruserve.server.redis_pool import _Pool
from sruserve.server.streams.redis import client as redis_client
from sruserve.server.streams.redis import scripts
from sruserve.server.streams.redis.scripts import Status
from tests.server.ports import free_port
from tests.server.streams.conftest import StartRedis
from tests.server.streams.redis.generous_timing import GENEROUS
from tests.server.streams.redis.proxies import BeforeRedis


def test_a_connection_that_ends_while_it_is_written_to_is_one_more_that_is_lost(
    redis_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop raises a `RuntimeError` for it, and none of Redis' errors."""
    get, lost = _Pool.get_connection, 0

    async def losing(pool: Any, end: float) -> Any:
        nonlocal lost
        connection = await get(pool, end=end)
        if lost:
            lost -= 1
            connection._writer.transport.abort()
            await asyncio.sleep(0.01)  # now the transport is closed
        return connection

    async def test() -> None:
        nonlocal lost
        link = redis_client.RedisClient(f"redis://127.0.0.1:{redis_port}", GENEROUS)
        command: Any = scripts.READ, b"", (["none"] * 7, ["none", 100])
        assert await link.run(*command) == Status.UNKNOWN
        lost = 1
        assert await link.run(*command) == Status.UNKNOWN, "a command is sent once more"
        lost = 2
        with pytest.raises(StoreUnavailable):
            await link.run(*command)
        assert await link.run(*command) == Status.UNKNOWN
        await link.close()

    monkeypatch.setattr(_Pool, "get_connection", losing)
    uvloop.run(test())


def test_what_is_answered_late_is_sent_once_more_on_another_connection(redis_port: int) -> None:
    async def test(client: redis.Redis) -> None:
        def opened() -> int:
            return int(client.info("stats")["total_connections_received"])

        link = redis_client.RedisClient(f"redis://127.0.0.1:{redis_port}", GENEROUS)
        command: Any = scripts.READ, b"", (["none"] * 7, ["none", 100])
        assert await link.run(*command) == Status.UNKNOWN
        before = opened()
        client.client_pause(60_000, all=False)
        try:
            link._connections.reply_seconds = 0.01
            running = asyncio.create_task(link.run(*command))
            await asyncio.sleep(0)  # now it is sent
            link._connections.reply_seconds = 90
            async with asyncio.timeout(60):
                while opened() == before:
                    await asyncio.sleep(0.005)
        finally:
            client.client_unpause()
        assert await running == Status.UNKNOWN
        await link.close()

    with redis.Redis(port=redis_port) as client:
        uvloop.run(test(client))


def test_a_command_ends_in_its_time_whatever_hangs(redis_port: int) -> None:
    """A reply that does not come, and a connection of which the greeting is not answered."""

    async def test() -> None:
        for hangs in (b"EVALSHA", b"HELLO"):
            proxy = BeforeRedis(redis_port, withheld=hangs)
            link = redis_client.RedisClient(f"redis://127.0.0.1:{proxy.port}", GENEROUS)
            link._seconds = 0.1
            try:
                with pytest.raises(StoreUnavailable):
                    await link.run(scripts.READ, b"", (["none"] * 7, ["none", 100]))
            finally:
                await link.close()
                proxy.close()

    uvloop.run(test())


def test_a_connection_reads_no_version_from_disk(
    redis_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read() -> str:
        raise AssertionError("the disk is read")

    async def test() -> None:
        link = redis_client.RedisClient(f"redis://127.0.0.1:{redis_port}", GENEROUS)
        assert await link.memory() == 0
        await link.close()

    monkeypatch.setattr("redis.utils.get_lib_version", read)
    uvloop.run(test())


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_call_is_cancelled_at_any_moment(redis_port: int, loop: Callable[..., None]) -> None:
    async def test() -> None:
        link = redis_client.RedisClient(f"redis://127.0.0.1:{redis_port}", GENEROUS)
        command: Any = scripts.READ, b"", (["none"] * 7, ["none", 100])
        assert await link.run(*command) == Status.UNKNOWN
        in_flight = dropped = 0
        for moment in range(200):
            for call in (partial(link.run, *command), link.memory):
                task = asyncio.create_task(call())
                for _ in range(moment % 10):
                    await asyncio.sleep(0)
                if task.cancel():
                    in_flight += 1
                    await asyncio.wait([task])
                    dropped += not task.cancelled()
        await link.close()
        assert in_flight > 100
        assert not dropped

    loop(test())


def test_a_redis_that_is_away_says_nothing_of_its_memory(start_redis: StartRedis) -> None:
    """So a tenant's part of it stays what it was."""
    port = free_port()

    async def test() -> None:
        link = redis_client.RedisClient(f"redis://127.0.0.1:{port}")
        with start_redis(port), redis.Redis(port=port) as client:
            assert await link.memory() == 0, "as much as there is"
            client.config_set("maxmemory", 64 << 20)
            assert await link.memory() == 64 << 20
        assert await link.memory() is None
        await link.close()

    uvloop.run(test())
