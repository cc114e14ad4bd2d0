"""A reply has the same bytes, whether it went past uvicorn's messages or through them."""

import json
import logging
import re
import socket
from typing import Any, BinaryIO

import httpx
import pytest

from sruserve.server.http import call
from sruserve.server.http.shortcuts import take_body, write_reply
from tests.server.conftest import Serve

BODY = json.dumps({"model": "question", "input": "How far is it?"}).encode()
POST = b"POST /v1/classify HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
WHOLE = POST + LENGTH + b"\r\n" + BODY
REQUESTS = {
    "whole": WHOLE,
    "in two": POST + LENGTH + b"\r\n" + BODY[:9] + b"|" + BODY[9:],
    "body later": POST + LENGTH + b"\r\n|" + BODY,
    "chunked": POST + CHUNKED,
    "with an id": POST + LENGTH + b"x-request-id: mine\r\n\r\n" + BODY,
    "closing": POST + LENGTH + b"connection: close\r\n\r\n" + BODY,
    "expecting": POST + LENGTH + b"expect: 100-continue\r\n\r\n|" + BODY,
    "old": WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    "pipelined": WHOLE * 3,
    "wrong": POST + b"content-length: 1\r\n\r\n{",
    "of another page": POST + LENGTH + b"origin: http://x\r\n\r\n" + BODY,
}


def received(client: httpx.Client, request: bytes) -> bytes:
    """All that is answered, but for dates and the server's own ids. "|" is a pause."""
    with socket.create_connection((client.base_url.host, client.base_url.port or 0), 60) as line:
        for part in request.split(b"|"):
            line.sendall(part)
            client.get("/livez")
        with line.makefile("rb") as file:
            reply = b"".join(one_reply(file) for _ in range(request.count(b"POST")))
    reply = re.sub(rb"\r\ndate: [^\r]*", b"", reply)
    return re.sub(rb"(cls-)?[0-9a-f]{32}", b"ID", reply)


def one_reply(file: BinaryIO) -> bytes:
    """The next reply, with a "100 Continue" before it."""
    head = b"".join(iter(file.readline, b"\r\n"))
    length = re.search(rb"content-length: (\d+)", head)
    return head + (file.read(int(length[1])) if length else one_reply(file))


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_replies_are_the_same_as_through_messages(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, request_: bytes
) -> None:
    by_shortcut = received(client, request_)
    with monkeypatch.context() as patch:
        patch.setattr(call, "take_body", lambda _: None)
        patch.setattr(call, "write_reply", lambda *_: False)
        through_messages = received(client, request_)
    assert by_shortcut == through_messages
    assert by_shortcut.startswith(b"HTTP/1.1 ")


def test_most_requests_take_the_shortcuts(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Any] = []

    def see(receive: Any) -> bytes | None:
        body = take_body(receive)
        taken.append(body)
        return body

    monkeypatch.setattr(call, "take_body", see)
    with socket.create_connection((client.base_url.host, client.base_url.port or 0), 60) as line:
        line.sendall(WHOLE)
        assert line.recv(1)
    assert taken == [BODY]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each reply took the shortcut."""
    written: list[bool] = []

    def see(*args: Any) -> bool:
        written.append(write_reply(*args))
        return written[-1]

    monkeypatch.setattr(call, "write_reply", see)
    return written


def test_replies_of_logged_requests_take_the_shortcut(serve: Serve, written: list[bool]) -> None:
    for access_log in (True, False):
        with serve("question", access_log=access_log) as (client, _):
            assert client.post("/v1/classify", json={"input": "a"}).status_code == 200
    assert written == [True, True]


def test_a_handler_of_uvicorns_access_log_makes_no_reply_slower(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, written: list[bool]
) -> None:
    with serve("question") as (client, _):
        monkeypatch.setattr(
            logging.getLogger("uvicorn.access"), "handlers", [logging.NullHandler()]
        )
        assert client.post("/v1/classify", json={"input": "a"}).status_code == 200
    assert written == [True]
