"""What else a Redis in use does: it fails over, and it permits only some commands."""

import asyncio
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from sruserve.server.key_ring import KeyRing
from sruserve.server.state.token import Envelope
from sruserve.server.streams.redis.store import RedisStore
from tests.server.conftest import Serve
from tests.server.observing import until
from tests.server.ports import free_port
from tests.server.streams.conftest import KEYS, Replicas, StartRedis, key_of
from tests.server.streams.redis.generous_timing import GENEROUS
from tests.server.streams.redis.proxies import BeforeRedis
from tests.server.streams.replies import code

DOCUMENT = Path(__file__).parents[4] / "docs" / "deployment.md"


def test_after_a_failover_streams_continue_at_the_new_primary(
    serve: Serve, start_redis: StartRedis
) -> None:
    before, after = free_port(), free_port()
    with (
        start_redis(before),
        start_redis(after),
        redis.Redis(port=before) as old,
        redis.Redis(port=after) as new,
        ExitStack() as stack,
    ):
        address = BeforeRedis(before)
        stack.callback(address.close)
        new.execute_command("REPLICAOF", "127.0.0.1", str(before))
        store = f"redis://127.0.0.1:{address.port}"
        running = stack.enter_context(serve("characters", state_keys=KEYS, store=store))
        replicas = Replicas([running], "redis")
        stream = replicas.create()
        assert replicas.step(stream, 1, prompt="a").status_code == 200
        until(lambda: bool(new.hget(key_of(stream), "state1")))
        new.execute_command("REPLICAOF", "NO", "ONE")
        old.execute_command("REPLICAOF", "127.0.0.1", str(after))
        address._redis_port = after  # where new connections lead
        refused = replicas.step(stream, 2, prompt="a")
        assert (refused.status_code, code(refused)) == (503, "store_unavailable")
        assert replicas.step(stream, 2, prompt="a").status_code == 200
        assert replicas.get(stream).json()["step"] == 2


@pytest.fixture
def limited(start_redis: StartRedis) -> Iterator[tuple[int, Any]]:
    """A Redis whose user `sruserve` may do what the documentation says."""
    port = free_port()
    command = re.search("^redis-cli (ACL SETUSER sruserve .*)$", DOCUMENT.read_text(), re.MULTILINE)
    assert command is not None
    with start_redis(port), redis.Redis(port=port) as connection:
        client: Any = connection
        client.config_set("maxmemory", 8 << 20)
        client.execute_command(*shlex.split(command[1]))
        yield port, client


def test_the_documented_permissions_are_enough(
    serve: Serve, limited: tuple[int, Any], caplog: pytest.LogCaptureFixture
) -> None:
    port, _ = limited
    store = f"redis://sruserve:PASSWORD@127.0.0.1:{port}"
    keys = "acme:acme-key-123,other:other-key-123"
    with serve("characters", state_keys=KEYS, store=store, api_keys=keys) as running:
        client, application = running
        client.headers["authorization"] = "Bearer acme-key-123"
        replicas = Replicas([running], "redis")
        stream = replicas.create()
        for number in (1, 2, 3):
            assert replicas.step(stream, number, prompt="a").status_code == 200
        assert replicas.step(stream, 3, prompt="a").status_code == 200
        assert replicas.post(stream, "fork", n=3).status_code == 201
        assert replicas.post(stream, "rewind", step=1).status_code == 200
        assert replicas.get(stream, "/state").status_code == 200
        assert replicas.delete(stream).status_code == 200
        assert code(replicas.get(stream)) == "stream_unknown"
        redis_store: Any = application.streams._store
        until(lambda: redis_store._quotas.part == 3 << 20)
    assert "Redis" not in caplog.text


def test_a_redis_that_hides_its_memory_is_divided_and_reported_once(
    limited: tuple[int, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    port, client = limited
    client.execute_command("ACL", "SETUSER", "sruserve", "-info")
    timing = replace(GENEROUS, memory_seconds=0.01)
    envelope = Envelope(KeyRing.parse(KEYS))
    url = f"redis://sruserve:PASSWORD@127.0.0.1:{port}"

    async def part(*quotas: int) -> int:
        store = RedisStore(url, envelope, 1, quotas, 1600, timing)
        await store.start()
        try:
            async with asyncio.timeout(60):
                while not store._client._memory_hidden:
                    await asyncio.sleep(0.01)
            assert await store._client.memory(5) == 5
            return store._quotas.part
        finally:
            await store.stop()

    assert asyncio.run(part(1000, 1000)) == 600
    assert [each.levelname for each in caplog.records if "+info" in each.message] == ["WARNING"]
    assert asyncio.run(part(1000)) == 1000, "nobody shares it"
