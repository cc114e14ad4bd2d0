"""A Redis that answers what Redis never answers."""

import asyncio
import logging
from contextlib import ExitStack
from dataclasses import replace

import pytest

from sruserve.server.key_ring import KeyRing
from sruserve.server.state.token import Envelope
from sruserve.server.streams.redis import client as redis_client
from sruserve.server.streams.redis.store import RedisStore
from tests.server.conftest import Serve
from tests.server.ports import free_port
from tests.server.streams.conftest import KEYS, Replicas, StartRedis
from tests.server.streams.redis.generous_timing import GENEROUS
from tests.server.streams.redis.proxies import AnswersRubbish
from tests.server.streams.replies import code

RUBBISH = (
    b"+OK", b":abc", b"$abc", b"$-5", b"*abc", b"*-1", b"*0", b"*1\r\n:3", b"%1\r\n:1\r\n:2",
    b"$1\r\nx", b"$3\r\n5 5", b"$7\r\n5 x 1 x", b"$8\r\n5 -1 1 x", b"$7\r\n5 5 9 x",
    b"$19\r\n5 5 " + b"9" * 15, b"$39\r\n5 5 " + b"9" * 35, b"*4\r\n:3\r\n:1\r\n:2\r\n$1\r\nx",
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
                outcome = reply.status_code, code(reply)
                assert outcome == (503, "store_unavailable"), (rubbish, reply.text)
            errors = [each for each in caplog.records if each.levelno >= logging.ERROR]
            assert len(errors) <= 2, (rubbish, "each request writes a line")
            assert not any(each.exc_info for each in errors), rubbish
            proxy.rubbish = b""
            assert replicas.get(stream).json()["step"] == 1
        assert replicas.step(stream, 2, prompt="a").status_code == 200


def test_a_redis_whose_info_is_rubbish_says_nothing_of_its_memory(redis_port: int) -> None:
    proxy = AnswersRubbish(redis_port)

    async def test() -> None:
        link = redis_client.RedisClient(f"redis://127.0.0.1:{proxy.port}", GENEROUS)
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
        store = RedisStore(
            url, envelope, 1, [1000, 1000], timing=replace(GENEROUS, memory_seconds=0.01)
        )
        await store.start()
        try:
            for memory, part in ((1600, 600), (int("9" * 400), 1000), (800, 300)):
                setting = f"maxmemory:{memory}"
                proxy.rubbish = f"${len(setting)}\r\n{setting}\r\n".encode()
                async with asyncio.timeout(60):
                    while store._quotas.part != part:
                        await asyncio.sleep(0.01)
        finally:
            await store.stop()

    try:
        asyncio.run(test())
    finally:
        proxy.close()
