"""How often a request waits for Redis."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import httpx
import redis

from tests.server.conftest import Serve
from tests.server.streams.conftest import KEYS, OwnRedis, Replicas, key_of
from tests.server.streams.redis.generous_timing import GENEROUS
from tests.server.streams.redis.proxies import BeforeRedis
from tests.server.streams.replies import text


def test_a_step_waits_for_redis_twice(serve: Serve, redis_port: int) -> None:
    timing = replace(GENEROUS, renew_seconds=3600, memory_seconds=3600)
    with ExitStack() as stack:
        proxy = BeforeRedis(redis_port)
        stack.callback(proxy.close)
        store = f"redis://127.0.0.1:{proxy.port}/4"
        replicas = Replicas(
            [stack.enter_context(serve("characters", state_keys=KEYS, store=store, timing=timing))],
            "redis",
        )

        def trips(ask: Callable[[], httpx.Response]) -> int:
            before = proxy.trips
            assert ask().is_success
            return proxy.trips - before

        def trips_of_each() -> dict[str, int]:
            stream, other = replicas.create(), replicas.create()
            return {
                "first step": trips(lambda: replicas.step(stream, 1, prompt="a")),
                "next step": trips(lambda: replicas.step(stream, 2, prompt="a")),
                "repeat": trips(lambda: replicas.step(stream, 2, prompt="a")),
                "state": trips(lambda: replicas.get(stream, "/state")),
                "fork": trips(lambda: replicas.post(stream, "fork")),
                "rewind": trips(lambda: replicas.post(stream, "rewind", step=1)),
                "step after a rewind": trips(lambda: replicas.step(stream, 2, prompt="b")),
                "delete": trips(lambda: replicas.delete(stream)),
                "fork of nothing": trips(lambda: replicas.post(other, "fork")),
                "state of nothing": trips(lambda: replicas.get(other, "/state")),
                "description": trips(lambda: replicas.get(other)),
            }

        trips_of_each()  # from now on Redis knows all scripts
        assert trips_of_each() == {
            "first step": 2,
            "next step": 2,
            "repeat": 3,  # which alone reads the stored reply
            "state": 2,
            "fork": 3,
            "rewind": 2,
            "step after a rewind": 2,
            "delete": 2,
            "fork of nothing": 3,
            "state of nothing": 2,
            "description": 1,
        }


def test_a_later_state_that_nobody_wrote_is_not_the_start_of_a_step(own_redis: OwnRedis) -> None:
    replicas, _, port = own_redis
    stream, same = replicas.create(), replicas.create()
    for each in (stream, same):
        assert replicas.step(each, 1, prompt="To be", temperature=0).status_code == 200
    with redis.Redis(port=port) as client:
        client.hset(key_of(stream), "state7", client.hget(key_of(same), "state1") or b"")
        assert replicas.get(stream, "/state").is_success
        assert replicas.post(stream, "fork").is_success
        replies = [replicas.step(each, 2, prompt="", temperature=0) for each in (stream, same)]
        assert text(replies[0]) == text(replies[1])
        assert not client.hexists(key_of(stream), "state7"), "it goes with the next step"
