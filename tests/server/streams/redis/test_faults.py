"""Redis stops, forgets, refuses and comes back, and each step is done once."""

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from sruserve.server.streams.redis import client as redis_client
from sruserve.server.streams.redis import scripts
from tests.server.conftest import Serve
from tests.server.held_steps import Steps
from tests.server.observing import until
from tests.server.ports import free_port
from tests.server.streams.conftest import KEYS, OwnRedis, Replicas, StartRedis, wait_briefly
from tests.server.streams.redis.generous_timing import GENEROUS
from tests.server.streams.redis.proxies import LosesAnswers
from tests.server.streams.redis.running_steps import STEP, active, taken
from tests.server.streams.replies import code, text


def test_what_is_sent_again_because_its_answer_was_lost_is_done_once(
    serve: Serve, start_redis: StartRedis
) -> None:
    port = free_port()
    with start_redis(port), redis.Redis(port=port) as client, ExitStack() as stack:
        proxy = LosesAnswers(port)
        stack.callback(proxy.close)
        store = f"redis://127.0.0.1:{proxy.port}"
        running = stack.enter_context(serve("characters", state_keys=KEYS, store=store))
        replicas = Replicas([running], "redis")

        def losing(script: str, ask: Callable[[], httpx.Response]) -> Any:
            proxy.lose = sha1(script.encode()).hexdigest().encode()
            reply = ask()
            assert proxy.lose is None, "no answer was lost"
            assert reply.is_success, reply.text
            return reply.json()

        for _ in range(2):  # from now on Redis knows all scripts
            first = replicas.create()
            for _ in range(2):
                assert replicas.step(first, 1, prompt="a").status_code == 200
            replicas.delete(first)
        body = {"model": "characters"}
        stream = losing(scripts.ADD, lambda: replicas.ask("POST", "/v1/streams", json=body))["id"]
        losing(scripts.TAKE, lambda: replicas.step(stream, 1, prompt="a"))
        losing(scripts.COMMIT, lambda: replicas.step(stream, 2, prompt="a"))
        assert replicas.get(stream).json()["step"] == 2
        losing(scripts.COMMIT, lambda: replicas.post(stream, "rewind", step=1))
        assert replicas.step(stream, 2, prompt="a").status_code == 200
        losing(scripts.READ_FIELD, lambda: replicas.step(stream, 2, prompt="a"))
        forks = losing(scripts.ADD, lambda: replicas.post(stream, "fork", n=3))["data"]
        losing(scripts.RELEASE, lambda: replicas.post(stream, "fork"))
        assert len(client.keys("*:stream:*")) == 5
        for each in (stream, *(fork["id"] for fork in forks)):
            losing(scripts.DELETE, partial(replicas.delete, each))
        assert len(client.keys("*:stream:*")) == 1
        (size,) = client.hvals(f"sruserve:sizes:{'0' * 32}")
        assert client.get(f"sruserve:sum:{'0' * 32}") == size


def test_all_requests_that_wait_for_one_stream_get_one_error_if_redis_stands_still(
    serve: Serve, start_redis: StartRedis, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next in line asks Redis, and all others get the same error."""
    commands: list[str] = []
    run = redis_client.RedisClient.run

    def noted(link: Any, script: str, *args: Any, **kind: Any) -> Any:
        commands.append(script)
        return run(link, script, *args, **kind)

    monkeypatch.setattr(redis_client.RedisClient, "run", noted)
    port = free_port()
    settings: dict[str, Any] = {"state_keys": KEYS, "store": f"redis://127.0.0.1:{port}"}
    settings["timing"] = replace(GENEROUS, lease_ms=5000)  # which the last step waits for
    with start_redis(port) as program, serve("characters", **settings) as running:
        replicas = Replicas([running], "redis")
        stream, server = replicas.create(), running[0]
        path, body = f"/v1/streams/{stream}/steps", {"step": 1, **STEP}
        steps.hold()
        with ThreadPoolExecutor(20) as pool:
            pending = [pool.submit(server.post, path, json=body)]
            until(lambda: steps.waiting == 1)
            pending += [pool.submit(server.post, path, json=body) for _ in range(12)]
            until(lambda: active(replicas) == 13)
            commands.clear()
            program.send_signal(signal.SIGSTOP)
            with wait_briefly(replicas):
                steps.go_on()
                whole = {"model": "characters", "prompt": "a", "max_tokens": 1}
                assert server.post("/v1/completions", json=whole).status_code == 200
                replies = [each.result() for each in pending]
        assert commands.count(scripts.TAKE) == 1
        outcomes = {(reply.status_code, code(reply)) for reply in replies}
        assert outcomes == {(503, "store_unavailable")}
        program.send_signal(signal.SIGCONT)
        assert replicas.step(stream, 1, **STEP).status_code == 200


@pytest.mark.parametrize("appended", [False, True])
def test_a_redis_that_is_killed_in_the_middle_of_a_step_is_written_to_once(
    serve: Serve,
    start_redis: StartRedis,
    steps: Steps,
    tmp_path: Path,
    appended: bool,
) -> None:
    port = free_port()
    keeps = tmp_path if appended else None
    store = f"redis://127.0.0.1:{port}"
    timing = replace(GENEROUS, lease_ms=300)
    with serve("characters", state_keys=KEYS, store=store, timing=timing) as running:
        replicas = Replicas([running], "redis")
        with ThreadPoolExecutor(1) as pool:
            with start_redis(port, keeps) as program, redis.Redis(port=port) as client:
                stream = replicas.create()
                first = replicas.step(stream, 1, **STEP)
                steps.hold()
                step = pool.submit(replicas.step, stream, 2, **STEP | {"prompt": ""})
                until(lambda: taken(client, stream))
                program.kill()
            with start_redis(port, keeps):
                steps.go_on()
                reply = step.result()
                again = replicas.step(stream, 2, **STEP | {"prompt": ""})
                if not appended:
                    assert reply.status_code in (404, 503)
                    assert (again.status_code, code(again)) == (404, "stream_unknown")
                    return
                assert reply.status_code in (200, 503)  # the latter if it was not back in time
                assert replicas.get(stream).json()["step"] == 2
        body = {"model": "characters", **STEP, "max_tokens": 2 * STEP["max_tokens"]}
        whole = replicas.ask("POST", "/v1/completions", json=body)
        assert text(first) + text(again) == text(whole)


def test_scripts_that_redis_forgot_are_sent_again(own_redis: OwnRedis) -> None:
    replicas, _, port = own_redis
    stop = threading.Event()

    def forget() -> None:
        with redis.Redis(port=port) as client:
            while not stop.is_set():
                client.script_flush()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(forget)
        try:
            stream = replicas.create()
            for number in range(1, 6):
                assert replicas.step(stream, number, prompt="a").status_code == 200
        finally:
            stop.set()


def test_a_redis_that_refuses_is_503_and_streams_continue_when_it_does_not(
    own_redis: OwnRedis, caplog: pytest.LogCaptureFixture
) -> None:
    replicas, _, port = own_redis
    stream = replicas.create()
    with redis.Redis(port=port) as client:
        for what, begin, end in (
            ("read only", ("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
            ("full", ("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
        ):
            client.execute_command(*begin)
            for reply in (
                replicas.ask("POST", "/v1/streams", json={}),
                replicas.step(stream, 1, prompt="a"),
            ):
                assert (reply.status_code, code(reply)) == (503, "store_unavailable"), what
            client.execute_command(*end)
            assert replicas.get(stream).json()["step"] == 0, what
            assert client.keys("*lease*") == [], what
    assert replicas.step(stream, 1, prompt="a").status_code == 200
    assert "read only replica" in caplog.text
    assert "maxmemory" in caplog.text


@pytest.mark.parametrize("what", ["stream", "gone", "lease", "sizes", "ends", "sum"])
def test_when_redis_evicts_one_key_nothing_else_goes_wrong(own_redis: OwnRedis, what: str) -> None:
    replicas, _, port = own_redis
    stream, other = replicas.create(), replicas.create()
    for each in (stream, other):
        assert replicas.step(each, 1, prompt="a").status_code == 200
    with redis.Redis(port=port) as client:
        for key in client.keys(f"sruserve:{what}:*"):
            if other not in str(key):
                client.delete(key)
        replies = [replicas.step(stream, 2, prompt="a"), replicas.delete(stream)]
        expected = 410 if what == "stream" else 200
        assert [reply.status_code for reply in replies] == [expected, expected]
        for number in (2, 3):
            assert replicas.step(other, number, prompt="a").status_code == 200
        assert replicas.delete(other).status_code == 200
        used_bytes = int(client.get(f"sruserve:sum:{'0' * 32}") or 0)
        assert (used_bytes > 0) == (what == "stream")  # until its time is over
