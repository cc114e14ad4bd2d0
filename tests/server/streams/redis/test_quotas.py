"""A tenant's part of Redis, and a Redis that is full."""

from typing import Any

import pytest
import redis

from tests.server.conftest import Serve
from tests.server.ports import free_port
from tests.server.streams.conftest import ACME, KEYS, OTHER, OwnRedis, StartRedis, key_of
from tests.server.streams.replies import code
from tests.server.streams.tenants import STEP, TWO, Client, goes_on


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
    port, max_bytes = free_port(), 2 << 20
    with start_redis(port), redis.Redis(port=port) as client:
        store = f"redis://127.0.0.1:{port}"
        settings: dict[str, Any] = {
            "state_keys": KEYS,
            "store": store,
            "tenant_stream_bytes": max_bytes,
        }
        with serve("characters", **settings) as (http, _):
            anybody = Client(http, "")
            anybody.steps(anybody.create(), 1, 1)
            before = client.info("memory")["used_memory"]
            assert anybody.greed()[0] == "state_quota_exceeded"
            assert client.info("memory")["used_memory"] - before < max_bytes


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
    warnings = [each for each in caplog.messages if "maxmemory" in each]
    assert 1 <= len(warnings) <= 4, "each request writes a line"
