"""Bodies and messages count as long as they wait for the server."""

import asyncio
import gzip
import json
import socket
import struct
import threading
import time
import zlib
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from sruserve.server.kserve import infer_body as wire
from sruserve.server.kserve.http import compression, infer
from sruserve.server.offload import POOL, THREADS
from sruserve.server.tasks.constraint_cache import ConstraintCache
from sruserve.server.tasks.limits import FREE_BYTES
from tests.server.conftest import Serve
from tests.server.held_steps import Steps
from tests.server.http.intake.bounds import BUDGET, LONGEST, Running
from tests.server.http.raw_requests import SECONDS, UPGRADE, connect, frame, head
from tests.server.observing import metric, until
from tests.server.websocket.sockets import open_socket


def test_a_body_that_waited_after_a_request_counts_until_it_is_read(
    running: Running, steps: Steps
) -> None:
    client, application = running
    steps.hold(application)
    body = json.dumps({"prompt": "a" * 40_000, "max_tokens": 1}).encode()
    second = head(len(body)).replace(b"/v1/score", b"/v1/completions") + body
    with connect(client, b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" + second):
        until(lambda: steps.waiting == 1)
        assert application.intake.budget.used == 0
        steps.go_on()


def test_complete_bodies_that_wait_for_a_thread_are_bounded_together(running: Running) -> None:
    client, application = running
    gate, body = threading.Event(), json.dumps({"input": "a" * 400_000}).encode()
    busy: list[None] = []

    def wait() -> None:
        busy.append(None)
        gate.wait(60)

    async def occupy() -> None:
        await asyncio.gather(*(POOL.run(wait, 1) for _ in range(THREADS)))

    occupied = threading.Thread(target=lambda: asyncio.run(occupy()))
    occupied.start()
    with ExitStack() as stack:
        stack.callback(occupied.join)
        stack.callback(gate.set)
        until(lambda: len(busy) == THREADS)
        one = head(len(body)) + body
        two = one.replace(b"/v1/score", b"/v2/models/characters/infer", 1)
        waiting, reading = [], application.limits.reading
        for number, request in enumerate((one, two), 1):
            waiting.append(stack.enter_context(connect(client, request)))
            until(lambda number=number: reading.used == number * len(body))  # type: ignore[misc]
        for request, status in ((one, b"429"), (two, b"503")):
            with connect(client, request) as refused:
                assert refused.recv(12).endswith(status)
        gate.set()
        assert [each.recv(12)[-3:] for each in waiting] == [b"200", b"400"]


def packed_inference(name: str, size: int) -> bytes:
    """A request whose body is much shorter than the `size` bytes that it unpacks to."""
    text = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}
    json_bytes = json.dumps({"inputs": [text], "parameters": {"max_tokens": 1}}).encode()
    plain = json_bytes.ljust(size)
    body = gzip.compress(plain) if name == "gzip" else zlib.compress(plain)
    assert len(body) < FREE_BYTES
    return (
        f"POST /v2/models/characters/infer HTTP/1.1\r\nhost: x\r\ncontent-encoding: {name}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body


@pytest.mark.parametrize("name", ["gzip", "deflate"])
def test_packed_bodies_count_with_what_they_unpack_to(
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    client, application = running
    reading = application.limits.reading
    large, small = packed_inference(name, LONGEST), packed_inference(name, FREE_BYTES)
    go_on, before, grown = threading.Event(), list[int](), list[tuple[int, int]]()
    parse, unpack = wire.read_request, compression.Unpacking.unpack

    def count_and_wait(*args: Any) -> Any:
        before.append(reading.used)
        assert go_on.wait(SECONDS)
        return parse(*args)

    def count_and_unpack(unpacking: compression.Unpacking) -> None:
        used = reading.used
        unpack(unpacking)
        grown.append((used, unpacking.size))

    monkeypatch.setattr(compression.Unpacking, "unpack", count_and_unpack)
    monkeypatch.setattr(infer, "read_request", count_and_wait)
    with ExitStack() as stack:
        with connect(client, large) as alone:
            until(lambda: before == [LONGEST])
            go_on.set()
            assert alone.recv(12).endswith(b"200")
        assert all(size <= max(used, FREE_BYTES) for used, size in grown)
        stack.enter_context(reading.hold(BUDGET - LONGEST // 2))
        with connect(client, large) as refused:
            assert refused.recv(12).endswith(b"503")
        with connect(client, small) as free:
            assert free.recv(12).endswith(b"200")


def test_a_prompt_that_waits_for_its_constraint_counts_until_its_job_is_queued(
    running: Running, monkeypatch: pytest.MonkeyPatch, steps: Steps
) -> None:
    client, application = running
    steps.hold(application)
    go_on = threading.Event()

    async def wait(*_: Any) -> None:
        while not go_on.is_set():
            await asyncio.sleep(0.01)

    monkeypatch.setattr(ConstraintCache, "of", wait)
    body = json.dumps({"prompt": "a" * 40_000, "max_tokens": 1}).encode()
    data = head(len(body)).replace(b"/v1/score", b"/v1/completions") + body
    with connect(client, data):
        until(lambda: application.limits.reading.used == len(body))
        go_on.set()
        until(lambda: steps.waiting == 1)
        until(lambda: application.limits.reading.used == 0)
        steps.go_on()


def test_messages_that_wait_in_a_socket_count_until_they_are_read(running: Running) -> None:
    client, application = running
    begin = '{"model":"characters","prompt":"a","max_tokens":100000}'
    message = json.dumps({"input": "a" * (LONGEST // 2)})
    with open_socket(client, close_timeout=0) as connection:
        connection.send(begin)
        connection.send(message)
        until(lambda: application.intake.budget.used > LONGEST // 2 - FREE_BYTES - 100)
        time.sleep(0.1)  # it stays so
        assert application.intake.budget.used > LONGEST // 2 - FREE_BYTES - 100
    with ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(open_socket(client, close_timeout=0))
            with suppress(ConnectionClosed):  # this one is beyond the limit
                for text in (begin, message, message):
                    connection.send(text)
        until(lambda: metric(client, "sru_sockets") < 4)
        assert metric(client, "sru_sockets") > 0
        until(lambda: BUDGET // 4 < application.intake.budget.used <= BUDGET // 2)


@pytest.mark.parametrize("count", [1, 2])
def test_the_frame_in_work_and_those_that_wait_end_with_their_client(
    serve: Serve, count: int
) -> None:
    size = LONGEST // 4
    score = b'{"model":"characters","input":"%b"}' % (b"a" * size)
    with serve("characters", max_batch_tokens=1) as (client, application):
        engine = application.lifecycle.catalogue["characters"].engine
        with connect(client, UPGRADE) as connection:
            assert b" 101 " in connection.recv(4096)
            connection.sendall(frame(score, len(score)))
            until(lambda: engine.running == 1)
            for _ in range(count):
                connection.sendall(frame(score, len(score)))
            until(lambda: application.intake.budget.used >= count * size - FREE_BYTES)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda: engine.running == 0 and application.lifecycle.active == 0)
        until(lambda: metric(client, "sru_sockets") == 0)
