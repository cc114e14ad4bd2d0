"""A request has to come in time, and has time that it does not take itself."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.conftest import Serve
from tests.server.held_steps import Steps
from tests.server.http.intake.bounds import GRACE, Running, ended
from tests.server.http.raw_replies import all_replies, send
from tests.server.http.raw_requests import CHUNKED, SECONDS, UPGRADE, code, connect, frame, head
from tests.server.moved_time import MovedTime, moved_time
from tests.server.observing import until
from tests.server.posting import SCORE, post
from tests.server.websocket.sockets import open_socket


@pytest.fixture(scope="module")
def moved_for_all() -> Iterator[MovedTime]:
    with moved_time() as moved:
        yield moved


@pytest.fixture(scope="module")
def running(serve: Serve, moved_for_all: MovedTime) -> Iterator[Running]:
    """A server whose clock the tests move."""
    settings: dict[str, Any] = {"receive_grace_seconds": GRACE, "keep_alive_seconds": 60}
    with serve("characters", receive_bytes_per_second=1 << 16, **settings) as running:
        yield running


@pytest.fixture
def new_client(running: Running) -> Iterator[httpx.Client]:
    """A client without idle connections, which the server closes while `moved` passes its time."""
    with httpx.Client(base_url=running[0].base_url, timeout=SECONDS) as client:
        yield client


@pytest.fixture
def moved(moved_for_all: MovedTime) -> MovedTime:
    """The server's clock, once no timer of an earlier test is left."""

    def run_out() -> bool:
        moved_for_all.pass_time(2 * GRACE)
        return not moved_for_all.timers

    until(run_out)
    return moved_for_all


@pytest.mark.parametrize(
    "begin",
    [b"POST /v1/sc", head(100), head(100) + b"{", head(100_000) + b"a" * 20_000,
     CHUNKED + b"5\r\n{", b"GET /livez HTTP/1.1\r\nhost: x\r\nx: ", CHUNKED + b"0\r\nx: y\r\n"],
    ids=["path", "no body", "a byte", "many", "a chunk", "a header", "trailers"],
)  # fmt: skip
def test_a_request_that_arrives_too_slowly_is_408(
    running: Running, moved: MovedTime, begin: bytes
) -> None:
    with connect(running[0], begin) as connection:
        until(lambda: bool(moved.timers))
        moved.pass_time(GRACE + 1)
        reply = all_replies(connection)
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert code(reply) == "request_timeout"
    assert b"connection: close" in reply


def test_a_byte_now_and_then_keeps_no_request_alive(running: Running, moved: MovedTime) -> None:
    with connect(running[0], head(100_000)) as connection:
        until(lambda: bool(moved.timers))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(20):
            send(connection, b"a")
            moved.pass_time(GRACE / 10)
            if ended(connection):
                break
        assert all_replies(connection).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("data", [b"\x81", frame(b"{", 100), b"\x01\x81" + bytes(4) + b"{"])
def test_a_message_that_arrives_too_slowly_closes_its_socket(
    running: Running, moved: MovedTime, data: bytes
) -> None:
    with connect(running[0], UPGRADE) as connection:
        assert b" 101 " in connection.recv(4096)
        connection.sendall(data)
        until(lambda: moved.waits(GRACE))
        moved.pass_time(GRACE + 1)
        reply = all_replies(connection)
    assert reply.endswith(b"\x03\xf0request_timeout")  # 1008


def test_an_idle_socket_and_an_idle_connection_have_no_such_time(
    new_client: httpx.Client, moved: MovedTime
) -> None:
    with open_socket(new_client) as connection:
        for frame in ('{"model":"characters","input":"a"}', '{"input":"a"}'):
            connection.send(frame)
            assert "steps" in connection.recv(SECONDS)
            assert post(new_client, SCORE, {"input": "a"}).status_code == 200
            moved.pass_time(GRACE + 1)


def test_an_honest_upload_works(
    running: Running, new_client: httpx.Client, moved: MovedTime
) -> None:
    received = running[1].intake.budget
    body = b'{"model":"absent","input":"' + b"a" * (1 << 20) + b'"}'

    def slowly() -> Iterator[bytes]:
        for at in range(0, len(body), 1 << 17):
            yield body[at : at + (1 << 17)]
            before = at - (1 << 15)  # what the parser keeps is not counted
            until(lambda before=before: received.used >= before)  # type: ignore[misc]
            moved.pass_time(GRACE / 6)  # longer in all than the grace, and at a good rate

    assert new_client.post(SCORE, content=slowly()).status_code == 404  # it was read to its end


def test_a_body_waits_for_no_clock_while_it_waits_for_the_server(
    running: Running, moved: MovedTime, steps: Steps
) -> None:
    """A request behind another one is not read until that is answered."""
    client, application = running
    first = b'{"model":"characters","prompt":"a","max_tokens":1}'
    second = b'{"model":"absent","input":"' + b"a" * 900_000 + b'"}'
    data = head(len(first)).replace(b"/v1/score", b"/v1/completions") + first
    steps.hold(application)
    with connect(client, data) as connection:
        until(lambda: steps.waiting == 1)
        sender = threading.Thread(target=send, args=(connection, head(len(second)) + second))
        sender.start()
        until(lambda: bool(moved.timers))
        for _ in range(3):
            moved.pass_time(GRACE + 1)
        steps.go_on()
        replies = b""
        while b"model_not_found" not in replies:
            replies += (part := connection.recv(65536))
            assert part, replies
        sender.join(SECONDS)
    assert [replies.count(b"HTTP/1.1 %d " % status) for status in (200, 404)] == [1, 1]
