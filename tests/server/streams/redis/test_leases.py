"""Leases that run out, or are lost, in the middle of a step."""

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import redis

from sruserve.server.streams.redis import scripts
from sruserve.server.streams.redis.client import Call, RedisClient
from tests.server.conftest import Serve
from tests.server.held_steps import Steps
from tests.server.observing import until
from tests.server.ports import free_port
from tests.server.streams.conftest import KEYS, Replicas, StartRedis, key_of
from tests.server.streams.redis.generous_timing import GENEROUS
from tests.server.streams.redis.running_steps import STEP, active, taken
from tests.server.streams.replies import code, text

Leased = tuple[Replicas, Any, redis.Redis]

# End the lease of a holder, whose next renewal may come before another one takes the stream.
END_LEASE = """
if redis.call('HGET', KEYS[1], 'by') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[2])
return 1
"""


@pytest.fixture(scope="module")
def leased(serve: Serve, start_redis: StartRedis) -> Iterator[Leased]:
    """Two servers that renew their leases often; their Redis, and a client of it."""
    port = free_port()
    settings: dict[str, Any] = {"state_keys": KEYS, "store": f"redis://127.0.0.1:{port}"}
    settings["timing"] = replace(GENEROUS, renew_seconds=0.1)
    with (
        start_redis(port) as program,
        redis.Redis(port=port) as client,
        serve("characters", **settings) as one,
        serve("characters", **settings) as other,
    ):
        yield Replicas([one, other], "redis"), program, client


@pytest.fixture
def renewing(monkeypatch: pytest.MonkeyPatch) -> set[RedisClient]:
    """The clients of Redis that wait for the reply to a renewal."""
    waiting: set[RedisClient] = set()
    run_each = RedisClient.run_each

    async def noted(
        link: RedisClient, script: str, owner: bytes, calls: Sequence[Call], **kind: bool
    ) -> list[Any]:
        if script == scripts.RENEW:
            waiting.add(link)
        try:
            return await run_each(link, script, owner, calls, **kind)
        finally:
            if script == scripts.RENEW:
                waiting.discard(link)

    monkeypatch.setattr(RedisClient, "run_each", noted)
    return waiting


def test_steps_outlive_a_redis_that_stops_for_longer_than_their_lease(
    leased: Leased, steps: Steps, renewing: set[RedisClient]
) -> None:
    replicas, program, client = leased
    alone, shared = replicas.create(), replicas.create()
    leases = [key_of(stream, "lease") for stream in (alone, shared)]
    steps.hold()
    with ThreadPoolExecutor(4) as pool:
        pending = [pool.submit(replicas.step, alone, 1, **STEP)]
        until(lambda: taken(client, alone))
        pending.append(pool.submit(replicas.step, shared, 1, **STEP))
        until(lambda: taken(client, shared))
        pending.append(pool.submit(replicas.step, shared, 1, **STEP))
        until(lambda: active(replicas) == 3)
        program.send_signal(signal.SIGSTOP)
        running_out = pool.submit(client.delete, *leases)  # once Redis continues
        until(lambda: len(renewing) == 2)
        program.send_signal(signal.SIGCONT)
        running_out.result()
        steps.go_on()
        replies = [each.result() for each in pending]
    assert [reply.status_code for reply in replies] == [200] * 3
    assert replies[1].content == replies[2].content
    for stream in (alone, shared):
        assert replicas.get(stream).json()["step"] == 1
        assert text(replicas.step(stream, 1, **STEP)) == text(replies[0])


def test_a_step_that_loses_its_stream_in_the_middle_gets_the_reply_of_who_did_it(
    leased: Leased, steps: Steps
) -> None:
    replicas, _, client = leased
    stream = replicas.create()
    one, other = replicas.clients
    path, lease = f"/v1/streams/{stream}/steps", key_of(stream, "lease")
    steps.hold()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(one.post, path, json={"step": 1, **STEP})
        until(lambda: taken(client, stream))
        holder = client.hget(key_of(stream), "by")
        assert holder is not None
        second = pool.submit(other.post, path, json={"step": 1, **STEP})
        until(lambda: not client.eval(END_LEASE, 2, key_of(stream), lease, holder))
        steps.go_on()
        replies = [first.result(), second.result()]
    assert [reply.status_code for reply in replies] == [200, 200]
    assert replies[0].content == replies[1].content
    assert replicas.get(stream).json()["step"] == 1


@pytest.mark.parametrize("ends", [None, 1 << 40], ids=["never", "years later"])
def test_a_lease_that_would_outlive_its_holder_ends_as_any_other(
    leased: Leased, ends: int | None
) -> None:
    replicas, _, client = leased
    stream = replicas.create()
    lease = key_of(stream, "lease")
    client.set(lease, "a dead replica", px=ends)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(replicas.step, stream, 1, **STEP)
        until(lambda: 0 < client.pttl(lease) <= GENEROUS.lease_ms)
        client.delete(lease)  # as if it had run out
        assert waiting.result().status_code == 200


def test_a_server_that_was_paused_writes_nothing_over_what_another_did(
    leased: Leased, serve: Serve, steps: Steps
) -> None:
    replicas, _, client = leased
    store = f"redis://127.0.0.1:{client.connection_pool.connection_kwargs['port']}"
    stream = replicas.create()
    path = f"/v1/streams/{stream}/steps"
    few = {"max_tokens": 5, "temperature": 0}
    timing = replace(GENEROUS, renew_seconds=3600)  # as if it were paused
    with (
        serve("characters", state_keys=KEYS, store=store, timing=timing) as (paused, application),
        ThreadPoolExecutor(1) as pool,
    ):
        steps.hold(application)
        late = pool.submit(paused.post, path, json={"step": 1, **STEP})
        until(lambda: steps.waiting == 1)
        client.delete(key_of(stream, "lease"))  # as if it had run out
        done = replicas.step(stream, 1, prompt="Not to be", **few)
        after = replicas.step(stream, 2, prompt="", **few)
        steps.go_on()
        lost = late.result()
    assert (lost.status_code, code(lost)) == (409, "wrong_step")
    whole = {"model": "characters", "prompt": "Not to be", "max_tokens": 10, "temperature": 0}
    both = text(replicas.ask("POST", "/v1/completions", json=whole))
    assert text(done) + text(after) == both
    assert replicas.step(stream, 2, prompt="", **few).content == after.content


@pytest.mark.parametrize("saved", [False, True])
def test_a_redis_that_is_emptied_or_older_in_the_middle_of_a_step_is_not_written_to(
    leased: Leased, steps: Steps, saved: bool
) -> None:
    replicas, _, client = leased
    stream = replicas.create()
    assert replicas.step(stream, 1, prompt="a").status_code == 200
    older = client.dump(key_of(stream))
    with ThreadPoolExecutor(1) as pool:
        steps.hold()
        running = pool.submit(replicas.step, stream, 2, **STEP)
        until(lambda: taken(client, stream))
        client.flushall()
        if saved:
            client.restore(key_of(stream), 60_000, older)  # type: ignore[arg-type]
        steps.go_on()
        lost = running.result()
    if saved:
        assert (lost.status_code, code(lost)) == (503, "store_unavailable")
        assert replicas.step(stream, 2, prompt="a").status_code == 200
    else:
        assert (lost.status_code, code(lost)) == (404, "stream_unknown")
        assert client.keys("*") == [], "a stream came back from the dead"
