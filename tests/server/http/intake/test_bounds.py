"""What clients send is bounded together, and small requests always get in."""

import json
import logging
import socket
import time
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from sruserve.server.http.uvicorn_http import HttpProtocol
from sruserve.server.tasks.limits import FREE_BYTES
from tests.server.conftest import Serve
from tests.server.http.intake.bounds import BUDGET, LONGEST, Running, ended
from tests.server.http.raw_replies import all_replies, next_reply, send
from tests.server.http.raw_requests import CHUNKED, UPGRADE, code, connect, frame, head
from tests.server.observing import until
from tests.server.posting import SCORE, post, refusal


def unfinished_body(client: httpx.Client) -> socket.socket:
    return connect(client, head(LONGEST) + b"a" * (LONGEST - 1))


def unfinished_chunks(client: httpx.Client) -> socket.socket:
    return connect(client, CHUNKED + b"%x\r\n" % LONGEST + b"a" * (LONGEST - 1))


def unfinished_frame(client: httpx.Client) -> socket.socket:
    connection = connect(client, UPGRADE)
    assert b" 101 " in connection.recv(4096)
    send(connection, frame(b"a" * (LONGEST - 1), LONGEST))
    return connection


def unfinished_message(client: httpx.Client) -> socket.socket:
    connection = connect(client, UPGRADE)
    assert b" 101 " in connection.recv(4096)
    fragment = frame(b"a" * (LONGEST // 2), LONGEST // 2)
    send(connection, b"\x01" + fragment[1:] + b"\x00" + fragment[1:-1])
    return connection


UNFINISHED = [unfinished_body, unfinished_chunks, unfinished_frame, unfinished_message]


@pytest.mark.parametrize("begin", UNFINISHED)
def test_unfinished_bodies_and_frames_are_bounded_together(running: Running, begin: Any) -> None:
    client, application = running
    budget = application.intake.budget
    with ExitStack() as stack:
        opened = [stack.enter_context(begin(client)) for _ in range(4)]
        until(lambda: budget.used > BUDGET // 3)
        until(lambda: sum(map(ended, opened)) == 3)  # those of one address leave half to others
        assert budget.used <= BUDGET // 2
        # small requests get in, whatever the others hold
        assert post(client, SCORE, {"input": "a" * (FREE_BYTES - 100)}).status_code == 200
        assert sum(map(ended, opened)) == 3


def test_a_body_beyond_the_budget_is_429_before_it_is_sent_and_after(running: Running) -> None:
    client, application = running
    with application.intake.budget.hold(BUDGET - 1000):
        reply = post(client, SCORE, {"input": "a" * 200_000})
        assert "SRUSERVE_MAX_QUEUE_BYTES" in refusal(reply, 429, "overloaded")
        with connect(client, CHUNKED + b"30000\r\n" + b"a" * 0x20000) as connection:
            assert code(all_replies(connection)) == "overloaded"
        with connect(client, head(200_000, b"expect: 100-continue")) as connection:
            reply_bytes = all_replies(connection)
            assert reply_bytes.startswith(b"HTTP/1.1 429 ")
    assert post(client, SCORE, {"input": "a" * 200_000}).status_code == 200


def test_requests_in_a_row_that_do_not_fit_end_the_connection_and_write_no_log(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    client, application = running
    body = json.dumps({"input": "a" * 12_000}).encode()
    with application.intake.budget.hold(BUDGET - 1000):
        for rest in (b"", head(100) + b"{", b"POST /v1/sc"):
            with connect(client, 12 * (head(len(body)) + body) + rest) as connection:
                replies = all_replies(connection)
            assert 0 < replies.count(b"HTTP/1.1 200 ") < 12
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_body_over_the_limit_is_refused_before_the_client_gets_100_continue(
    running: Running,
) -> None:
    client, _ = running
    with connect(client, head(LONGEST + 1, b"expect: 100-continue")) as connection:
        reply = all_replies(connection)
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert b"100 Continue" not in reply
    body = b'{"model":"characters","input":"abc"}'
    with connect(client, head(len(body), b"expect: 100-continue")) as connection:
        assert next_reply(connection).startswith(b"HTTP/1.1 100 ")
        send(connection, body)
        assert next_reply(connection).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_keeps_sending_gets_to_read_why_it_was_refused(running: Running) -> None:
    client, _ = running
    for size in (LONGEST + 1, 40 * LONGEST):
        refusal(client.post(SCORE, content=b"a" * size), 413, "body_too_large")
    with connect(client, head(LONGEST + 1)) as connection:
        connection.recv(1, socket.MSG_PEEK)
        for _ in range(4):  # it would be reset if the server had closed it
            connection.sendall(b"a" * (LONGEST // 4))
            time.sleep(0.05)
        assert all_replies(connection).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_ends_after_its_reply_leaves_an_idle_connection(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, application = running
    replied: list[HttpProtocol] = []
    on_response_complete = HttpProtocol.on_response_complete

    def see(protocol: HttpProtocol) -> None:
        on_response_complete(protocol)
        replied.append(protocol)

    monkeypatch.setattr(HttpProtocol, "on_response_complete", see)
    with connect(client, CHUNKED.replace(b"POST /v1/score", b"GET /livez")) as connection:
        assert b" 200 " in next_reply(connection)
        until(lambda: bool(replied))
        (protocol,) = replied
        protocol._idle_until = None
        connection.sendall(b"0\r\n" + (b"x: %b\r\n" % (b"y" * 240)) * 200)
        until(lambda: application.intake.budget.used > 0)
        connection.sendall(b"\r\n")
        until(lambda: application.intake.budget.used == 0)
        until(lambda: protocol._idle_until is not None)
        until(lambda: protocol in protocol._peer.idle)


def test_a_trailer_is_not_read_as_a_header(running: Running) -> None:
    client, _ = running
    data = CHUNKED + b"1\r\n{\r\n0\r\nx-request-id: trailer\r\n\r\n"
    with connect(client, data) as connection:
        reply = next_reply(connection)
    assert b"x-request-id: " in reply
    assert b"trailer" not in reply


def test_the_bytes_of_a_key_are_bounded_and_unknown_keys_hold_none(serve: Serve) -> None:
    keys = "greedy:greedy-key,modest:modest-key"
    limits = {"max_queue_bytes": BUDGET, "max_body_bytes": LONGEST}
    with serve("characters", api_keys=keys, **limits) as (client, application):
        budget = application.intake.budget
        with connect(client, head(LONGEST, b"authorization: Bearer wrong-key")) as wrong:
            send(wrong, b"a" * 100_000)
            assert code(all_replies(wrong)) == "invalid_api_key"
        until(lambda: budget.used == 0)
        key = b"authorization: Bearer greedy-key"
        with connect(client, head(LONGEST, key) + b"a" * (LONGEST - 1)):
            until(lambda: budget.used > LONGEST // 2)
            for name, status in (("greedy-key", 429), ("modest-key", 200)):
                client.headers["authorization"] = f"Bearer {name}"
                assert post(client, SCORE, {"input": "a" * 200_000}).status_code == status
