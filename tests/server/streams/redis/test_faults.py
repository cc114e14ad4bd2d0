"""Redis stops, forgets, refuses and comes back; servers stop and come back."""

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import uvloop
from redis.asyncio.connection import AbstractConnection

from sruserve.server.errors import StoreUnavailable
from sruserve.server.key_ring import KeyRing
from sruserve.server.settings import SettingsError, load_settings
from sruserve.server.state.token import Envelope
from sruserve.server.streams.redis import client as redis_client
from sruserve.server.streams.redis import scripts
from sruserve.server.streams.redis.scripts import Status
from sruserve.server.streams.redis.store import RedisStore
from sruserve.server.streams.redis.timing import RedisTiming
from tests.server.conftest import Serve
from tests.server.held_steps import Steps
from tests.server.http.test_clients_that_leave import until
from tests.server.ports import free_port
from tests.server.streams.conftest import KEYS, OwnRedis, Replicas, StartRedis, key_of
from tests.server.streams.redis.proxies import AnswersRubbish, LosesAnswers
from tests.server.streams.test_streams import code, text

STEP: dict[str, Any] = {"prompt": "To be", "max_tokens": 20, "temperature": 0}
Leased = tuple[Replicas, Any, redis.Redis]


@pytest.fixture(scope="module")
def leased(serve: Serve, start_redis: StartRedis) -> Iterator[Leased]:
    """Two servers whose leases are short; their Redis, and a client of it."""
    port = free_port()
    given: dict[str, Any] = {"state_keys": KEYS, "store": f"redis://127.0.0.1:{port}"}
    given["timing"] = RedisTiming(lease_ms=300, renew_seconds=0.1)
    with (
        start_redis(port) as program,
        redis.Redis(port=port) as client,
        serve("characters", **given) as one,
        serve("characters", **given) as other,
    ):
        yield Replicas([one, other], "redis"), program, client


def taken(client: redis.Redis, stream: str) -> bool:
    return bool(client.exists(key_of(stream, "lease")))


def active(replicas: Replicas) -> int:
    """How many requests the servers have."""
    return sum(application.lifecycle.active for application in replicas.applications)


def test_steps_outlive_a_redis_that_stops_for_longer_than_their_lease(
    leased: Leased, steps: Steps
) -> None:
    replicas, program, client = leased
    alone, shared = replicas.create(), replicas.create()
    steps.hold()
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(replicas.step, alone, 1, **STEP)]
        until(lambda: taken(client, alone))
        asked.append(pool.submit(replicas.step, shared, 1, **STEP))
        until(lambda: taken(client, shared))
        asked.append(pool.submit(replicas.step, shared, 1, **STEP))
        until(lambda: active(replicas) == 3)
        program.send_signal(signal.SIGSTOP)
        time.sleep(0.5)  # the time of Redis is that of the machine
        program.send_signal(signal.SIGCONT)
        steps.go_on()
        replies = [each.result() for each in asked]
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
        second = pool.submit(other.post, path, json={"step": 1, **STEP})
        until(lambda: client.delete(lease) >= 0 and client.hget(key_of(stream), "by") != holder)
        steps.go_on()
        replies = [first.result(), second.result()]
    assert [reply.status_code for reply in replies] == [200, 200]
    assert replies[0].content == replies[1].content
    assert replicas.get(stream).json()["step"] == 1


def test_a_server_that_was_paused_writes_nothing_over_what_another_did(
    leased: Leased, serve: Serve, steps: Steps
) -> None:
    replicas, _, client = leased
    store = f"redis://127.0.0.1:{client.connection_pool.connection_kwargs['port']}"
    stream = replicas.create()
    path = f"/v1/streams/{stream}/steps"
    few = {"max_tokens": 5, "temperature": 0}
    timing = RedisTiming(renew_seconds=3600)  # as if it were paused
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


RUBBISH = (
    b"+OK", b":abc", b"$abc", b"$-5", b"*abc", b"*-1", b"*0", b"*1\r\n:3", b"%1\r\n:1\r\n:2",
    b"*4\r\n:3\r\n:1\r\n:2\r\n$1\r\nx", b"*4\r\n:3\r\n$1\r\nx\r\n:5\r\n:5",
    b"*5\r\n:3\r\n$1\r\ny\r\n$1\r\nx\r\n:5\r\n$0\r\n", b"*5\r\n:3\r\n$1\r\nx\r\n:5\r\n:5\r\n:5",
    b"*1\r\n" * 5000,
    b"$2\r\n\xff\xfe", b",abc", b"#x", b"(abc", b"~1\r\n*1\r\n:1", b"-", b":-77",
    b"$19\r\nmaxmemory:" + b"9" * 9, b"$14\r\nmaxmemory:-5\r\n", b"HTTP/1.1 400 Bad Request",
)  # fmt: skip


def test_a_redis_that_answers_rubbish_is_503_and_is_asked_again(
    serve: Serve, start_redis: StartRedis, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    with start_redis(port), ExitStack() as stack:
        proxy = AnswersRubbish(port)
        stack.callback(proxy.close)
        store = f"redis://127.0.0.1:{proxy.port}"
        running = stack.enter_context(serve("characters", state_keys=KEYS, store=store))
        replicas = Replicas([running], "redis")
        stream = replicas.create()
        assert replicas.step(stream, 1, prompt="a").status_code == 200
        for rubbish in RUBBISH:
            caplog.clear()
            proxy.rubbish = rubbish + b"\r\n"
            for reply in (
                replicas.ask("POST", "/v1/streams", json={}),
                replicas.get(stream),
                replicas.step(stream, 2, prompt="a"),
                replicas.post(stream, "fork"),
                replicas.delete(stream),
            ):
                told = reply.status_code, code(reply)
                assert told == (503, "store_unavailable"), (rubbish, reply.text)
            errors = [each for each in caplog.records if each.levelno >= logging.ERROR]
            assert len(errors) <= 2, (rubbish, "each request writes a line")
            assert not any(each.exc_info for each in errors), rubbish
            proxy.rubbish = b""
            assert replicas.get(stream).json()["step"] == 1
        assert replicas.step(stream, 2, prompt="a").status_code == 200


def test_a_redis_whose_info_is_rubbish_says_nothing_of_its_memory(redis_port: int) -> None:
    proxy = AnswersRubbish(redis_port)

    async def test() -> None:
        link = redis_client.RedisClient(f"redis://127.0.0.1:{proxy.port}")
        for rubbish in (b":7", b"*1\r\n:3", b"$12\r\nmaxmemory:-5", b"$13\r\nmaxmemory:1e9x"):
            proxy.rubbish = rubbish + b"\r\n"
            assert await link.memory() is None, rubbish
        proxy.rubbish = b""
        assert await link.memory() == 0
        await link.close()

    try:
        asyncio.run(test())
    finally:
        proxy.close()


def test_a_redis_that_says_it_has_endless_memory_is_asked_again(
    redis_port: int,
) -> None:
    proxy = AnswersRubbish(redis_port)

    async def test() -> None:
        url, envelope = f"redis://127.0.0.1:{proxy.port}", Envelope(KeyRing.parse(KEYS))
        store = RedisStore(url, envelope, 1, [1000, 1000], timing=RedisTiming(memory_seconds=0.01))
        await store.start()
        try:
            for memory, part in ((1600, 600), (int("9" * 400), 1000), (800, 300)):
                told = f"maxmemory:{memory}"
                proxy.rubbish = f"${len(told)}\r\n{told}\r\n".encode()
                async with asyncio.timeout(60):
                    while store._part != part:
                        await asyncio.sleep(0.01)
        finally:
            await store.stop()

    try:
        asyncio.run(test())
    finally:
        proxy.close()


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


def test_all_that_wait_for_one_stream_are_told_together_that_redis_stands_still(
    serve: Serve, start_redis: StartRedis, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next in line asks Redis, and all others are told what it was told."""
    asked_for: list[str] = []
    run = redis_client.RedisClient.run

    def noted(link: Any, script: str, *given: Any, **kind: Any) -> Any:
        asked_for.append(script)
        return run(link, script, *given, **kind)

    monkeypatch.setattr(redis_client.RedisClient, "run", noted)
    port = free_port()
    given: dict[str, Any] = {"state_keys": KEYS, "store": f"redis://127.0.0.1:{port}"}
    given["timing"] = RedisTiming(command_seconds=3)
    with start_redis(port) as program, serve("characters", **given) as running:
        replicas = Replicas([running], "redis")
        stream, server = replicas.create(), running[0]
        path, body = f"/v1/streams/{stream}/steps", {"step": 1, **STEP}
        steps.hold()
        with ThreadPoolExecutor(20) as pool:
            asked = [pool.submit(server.post, path, json=body)]
            until(lambda: steps.waiting == 1)
            asked += [pool.submit(server.post, path, json=body) for _ in range(12)]
            until(lambda: active(replicas) == 13)
            asked_for.clear()
            program.send_signal(signal.SIGSTOP)
            steps.go_on()
            whole = {"model": "characters", "prompt": "a", "max_tokens": 1}
            assert server.post("/v1/completions", json=whole).status_code == 200
            replies = [each.result() for each in asked]
        assert asked_for.count(scripts.TAKE) == 1
        told = {(reply.status_code, code(reply)) for reply in replies}
        assert told == {(503, "store_unavailable")}
        program.send_signal(signal.SIGCONT)
        assert replicas.step(stream, 1, **STEP).status_code == 200


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


@pytest.mark.parametrize("kept", [False, True])
def test_a_redis_that_is_killed_in_the_middle_of_a_step_is_written_to_once(
    serve: Serve,
    start_redis: StartRedis,
    steps: Steps,
    tmp_path: Path,
    kept: bool,
) -> None:
    port = free_port()
    keeps = tmp_path if kept else None
    store = f"redis://127.0.0.1:{port}"
    timing = RedisTiming(lease_ms=300)
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
                if not kept:
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


def test_a_redis_that_refuses_is_503_and_streams_go_on_when_it_does_not(
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
        held = int(client.get(f"sruserve:sum:{'0' * 32}") or 0)
        assert (held > 0) == (what == "stream")  # until its time is over


def test_a_wrong_password_is_logged_as_such_and_never_shown(
    serve: Serve, start_redis: StartRedis, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    with start_redis(port), redis.Redis(port=port) as client:
        client.config_set("requirepass", "the-right-word")
        for given, told in (
            (f"redis://127.0.0.1:{port}", "password in SRUSERVE_STORE"),
            (f"redis://:a-wrong-word@127.0.0.1:{port}", "password in SRUSERVE_STORE"),
            (f"rediss://:a-wrong-word@127.0.0.1:{port}", "Timeout connecting"),
        ):
            caplog.clear()
            with (
                caplog.at_level(logging.DEBUG),
                serve("characters", state_keys=KEYS, store=given) as (http, _),
            ):
                refused = http.post("/v1/streams", json={})
                assert (refused.status_code, code(refused)) == (503, "store_unavailable")
                pages = [http.get(path).text for path in ("/metrics", "/health", "/v2")]
            assert told in caplog.text
            shown = caplog.text + refused.text + "".join(pages)
            assert "a-wrong-word" not in shown


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret-word/x@127.0.0.1:6379",
        "redis://:secret-word@127.0.0.1:port",
        "redis://:secret-word@127.0.0.1:99999",
        "redis://:secret-word@127.0.0.1/first",
        "redis://:secret-word@127.0.0.1/0?decode_responses=true",
        "redis://:secret-word@127.0.0.1/0?socket_timeout=secret-word",
        "redis://:secret-word@127.0.0.1/0?db=secret-word",
        "redis://:secret-word@127.0.0.1/0?ssl_ca_certs=/ca.pem",
        "rediss://:secret-word@127.0.0.1/0?ssl_bogus=1",
        "rediss://:secret-word@127.0.0.1/0?ssl_cert_reqs=secret-word",
        "redis://:secret-word@[::1",
    ],
)
def test_an_address_that_cannot_be_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(SettingsError, match="SRUSERVE_STORE: ") as refused:
        load_settings(store=url, state_keys=KEYS)
    assert "secret-word" not in str(refused.value)


def test_a_connection_that_ends_while_it_is_written_to_is_one_more_that_is_lost(
    redis_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop raises a `RuntimeError` for it, and none of Redis' errors."""
    send, lost = AbstractConnection._send_packed_command, 0

    async def losing(connection: Any, command: Any) -> None:
        nonlocal lost
        if lost:
            lost -= 1
            connection._writer.transport.abort()
            await asyncio.sleep(0.01)  # now the transport is closed
        await send(connection, command)

    async def test() -> None:
        nonlocal lost
        link = redis_client.RedisClient(f"redis://127.0.0.1:{redis_port}")
        asked: Any = scripts.READ, b"", (["none"] * 7, ["none", 100])
        assert await link.run(*asked) == [Status.UNKNOWN]
        lost = 1
        assert await link.run(*asked) == [Status.UNKNOWN], "a command is sent once more"
        lost = 2
        with pytest.raises(StoreUnavailable):
            await link.run(*asked)
        assert await link.run(*asked) == [Status.UNKNOWN]
        await link.close()

    monkeypatch.setattr(AbstractConnection, "_send_packed_command", losing)
    uvloop.run(test())


def test_a_connection_reads_no_version_from_disk(
    redis_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read() -> str:
        raise AssertionError("the disk is read")

    async def test() -> None:
        link = redis_client.RedisClient(f"redis://127.0.0.1:{redis_port}")
        assert await link.memory() == 0
        await link.close()

    monkeypatch.setattr("redis.utils.get_lib_version", read)
    uvloop.run(test())


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_call_is_cancelled_at_any_moment(redis_port: int, loop: Callable[..., None]) -> None:
    async def test() -> None:
        link = redis_client.RedisClient(f"redis://127.0.0.1:{redis_port}")
        asked: Any = scripts.READ, b"", (["none"] * 7, ["none", 100])
        assert await link.run(*asked) == [Status.UNKNOWN]
        in_flight = dropped = 0
        for moment in range(200):
            for call in (partial(link.run, *asked), link.memory):
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
