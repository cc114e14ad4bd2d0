"""A request has to come in time, and has time that it does not take itself."""

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.held_steps import Steps
from tests.server.http.intake.bounds import GRACE, LENIENT_GRACE, Running, ended
from tests.server.http.intake.moved_time import MovedTime, moved_time
from tests.server.http.raw_replies import all_replies, send
from tests.server.http.raw_requests import CHUNKED, SECONDS, UPGRADE, code, connect, frame, head
from tests.server.observing import until
from tests.server.posting import SCORE, post
from tests.server.websocket.sockets import open_socket


@pytest.fixture(scope="module")
def hasty(serve: Serve) -> Iterator[Running]:
    """A server that waits for no client."""
    settings: dict[str, Any] = {"receive_grace_seconds": GRACE, "keep_alive_seconds": 60}
    with serve("characters", receive_bytes_per_second=1 << 16, **settings) as running:
        yield running


@pytest.fixture
def moved() -> Iterator[MovedTime]:
    with moved_time() as moved:
        yield moved


@pytest.fixture
def lenient(serve: Serve, moved: MovedTime) -> Iterator[Running]:
    """A server whose clock the test moves."""
    settings: dict[str, Any] = {"receive_grace_seconds": LENIENT_GRACE, "keep_alive_seconds": 60}
    with serve("characters", receive_bytes_per_second=1 << 16, **settings) as running:
        yield running


@pytest.mark.parametrize(
    "begin",
    [b"POST /v1/sc", head(100), head(100) + b"{", head(100_000) + b"a" * 20_000,
     CHUNKED + b"5\r\n{", b"GET /livez HTTP/1.1\r\nhost: x\r\nx: ", CHUNKED + b"0\r\nx: y\r\n"],
    ids=["path", "no body", "a byte", "many", "a chunk", "a header", "trailers"],
)  # fmt: skip
def test_a_request_that_comes_too_slowly_is_408(hasty: Running, begin: bytes) -> None:
    with connect(hasty[0], begin) as connection:
        reply = all_replies(connection)
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert code(reply) == "request_timeout"
    assert b"connection: close" in reply


def test_a_byte_now_and_then_keeps_no_request_alive(hasty: Running) -> None:
    with connect(hasty[0], head(100_000)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(200):
            send(connection, b"a")
            time.sleep(GRACE / 10)
            if ended(connection):
                break
        assert all_replies(connection).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("data", [b"\x81", frame(b"{", 100), b"\x01\x81" + bytes(4) + b"{"])
def test_a_message_that_comes_too_slowly_closes_its_socket(hasty: Running, data: bytes) -> None:
    with connect(hasty[0], UPGRADE) as connection:
        assert b" 101 " in connection.recv(4096)
        connection.sendall(data)
        reply = all_replies(connection)
    assert reply.endswith(b"\x03\xf0request_timeout")  # 1008


def test_an_idle_socket_and_an_idle_connection_have_no_such_time(
    lenient: Running, moved: MovedTime
) -> None:
    client, _ = lenient
    with open_socket(client) as connection:
        for frame in ('{"model":"characters","input":"a"}', '{"input":"a"}'):
            connection.send(frame)
            assert "steps" in connection.recv(SECONDS)
            assert post(client, SCORE, {"input": "a"}).status_code == 200
            moved.pass_time(LENIENT_GRACE + 1)


def test_an_honest_upload_works(lenient: Running, moved: MovedTime) -> None:
    client, _ = lenient
    body = b'{"model":"absent","input":"' + b"a" * (1 << 20) + b'"}'

    def slowly() -> Iterator[bytes]:
        for at in range(0, len(body), 1 << 17):
            yield body[at : at + (1 << 17)]
            moved.pass_time(LENIENT_GRACE / 6)  # longer in all than the grace, and at a good rate

    assert client.post(SCORE, content=slowly()).status_code == 404  # it was read to its end


def test_a_body_waits_for_no_clock_while_it_waits_for_the_server(
    lenient: Running, moved: MovedTime, steps: Steps
) -> None:
    """A request behind another one is not read until that is answered."""
    client, application = lenient
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
            moved.pass_time(LENIENT_GRACE + 1)
        steps.go_on()
        replies = b""
        while b"model_not_found" not in replies:
            replies += (part := connection.recv(65536))
            assert part, replies
        sender.join(SECONDS)
    assert [replies.count(b"HTTP/1.1 %d " % status) for status in (200, 404)] == [1, 1]
