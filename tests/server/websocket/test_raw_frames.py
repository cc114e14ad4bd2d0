"""Sockets as bytes: handshakes, pieces, and what is no WebSocket."""

import json
import socket
import struct
from typing import Any

import httpx
import pytest

from sruserve.server.app import Application
from sruserve.server.json_output import json_bytes
from sruserve.server.websocket import request as frames
from sruserve.server.websocket.uvicorn_websocket import WebSocketProtocol
from tests.server.http.raw_replies import next_reply
from tests.server.http.raw_requests import GET, UPGRADE, connect
from tests.server.observing import metric, until
from tests.server.websocket.raw_sockets import ASK, Raw, frame


@pytest.mark.parametrize("early", [True, False], ids=["with the handshake", "after it"])
def test_a_frame_may_arrive_with_the_handshake(client: httpx.Client, early: bool) -> None:
    with Raw(client, body=ASK if early else b"") as raw:
        if not early:
            assert raw.received(b"\r\n\r\n").startswith(b"HTTP/1.1 101")
            raw.socket.sendall(ASK)
        assert b'"label":' in raw.received(b'"usage"')


@pytest.mark.parametrize("padding", [0, 420, 900, 5000])
def test_frames_that_arrive_with_the_handshake_wait_for_its_answer(
    client: httpx.Client, padding: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The head is parsed in pieces, and so are the frames; none of the pieces has bytes of both."""
    head = b"x-padding: %b\r\n" % (b"a" * padding)
    with Raw(client, head, frame(b"hello", 9) + ASK) as raw:
        received = raw.received(b'"usage"')
        assert received.startswith(b"HTTP/1.1 101")
        assert b"\x8a\x05hello" in received.partition(b"\r\n\r\n")[2]
        assert b'"label":' in received
    for bad, code in ((b"\xff" * 20, 1002), (frame(struct.pack("!H", 1000), 8), 1000)):
        with Raw(client, head, bad) as raw:
            received = raw.received(b"never")
            assert received.startswith(b"HTTP/1.1 101")
            assert struct.pack("!H", code) in received.partition(b"\r\n\r\n")[2]
    assert caplog.records == []


def test_a_message_may_arrive_in_very_many_pieces(client: httpx.Client) -> None:
    text = json.dumps({"model": "question", "input": "a b", "more": False}).encode()
    pieces = [frame(text[:1], 1, last=False)]
    for byte in text[1:]:
        pieces += [frame(b"", 0, last=False)] * 500 + [frame(bytes([byte]), 0, last=False)]
        pieces += [frame(b"ping", 9)]
    with Raw(client) as raw:
        raw.received(b"\r\n\r\n")
        raw.socket.sendall(b"".join([*pieces, frame(b"", 0)]))
        assert b'"label":' in raw.received(b'"usage"')


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(b"x", 3), 1002),
        (frame(b"x", 0), 1002),
        (frame(b"x" * 126, 9), 1002),
        (b"\x81\xff" + struct.pack("!Q", 1 << 40), 1009),
        (b"\x81\x01x", 1002),
    ],
    ids=["unknown kind", "end of nothing", "long ping", "too big", "not masked"],
)
def test_an_invalid_websocket_gets_an_error_and_is_closed(
    client: httpx.Client, data: bytes, code: int
) -> None:
    with Raw(client) as raw:
        raw.received(b"\r\n\r\n")
        raw.socket.sendall(data + ASK * 3)
        received = raw.received(b"never")
        assert struct.pack("!H", code) in received
    until(lambda: metric(client, "sru_sockets") == 0)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"sec-websocket-key: another\r\n", b"400"),
        (b"".join(b"x%d: y\r\n" % i for i in range(260)), b"431"),
    ],
    ids=["two keys", "many headers"],
)
def test_a_wrong_handshake_is_refused_at_once(
    client: httpx.Client, head: bytes, status: bytes
) -> None:
    with Raw(client, head) as raw:
        assert raw.received(b"never").startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    ("header", "body"),
    [(b"content-length: 2", b"{}"), (b"transfer-encoding: chunked", b"2\r\n{}\r\n0\r\n\r\n")],
    ids=["length", "chunks"],
)
def test_a_handshake_with_a_body_opens_nothing_and_is_answered(
    client: httpx.Client, header: bytes, body: bytes
) -> None:
    upgrade = UPGRADE.replace(b"\r\n\r\n", b"\r\n" + header + b"\r\n\r\n")
    with connect(client, upgrade + body) as connection:
        assert b" 426 " in next_reply(connection)
        connection.sendall(GET)
        assert b" 200 " in next_reply(connection)


def test_an_offer_after_a_running_request_is_ignored(client: httpx.Client) -> None:
    body = json.dumps({"model": "characters", "prompt": "a", "max_tokens": 2000}).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
    offer = (
        b"GET /v1/stream HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\r\n"
    )
    address = (client.base_url.host, client.base_url.port or 0)
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(request % (len(body), body) + offer)
        received = b""
        while b"HTTP/1.1 4" not in received:
            received += (chunk := connection.recv(65536))
            assert chunk
        assert received.startswith(b"HTTP/1.1 200")


def test_an_invalid_frame_while_a_reply_is_made_ends_the_socket_and_is_not_logged(
    client: httpx.Client, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, protocols = json_bytes, []
    opened = WebSocketProtocol.handle_connect

    def see(protocol: WebSocketProtocol, event: Any) -> None:
        protocols.append(protocol)
        opened(protocol, event)

    def make(reply: dict[str, Any]) -> bytes:
        protocols[0].data_received(frame(b"x", 7))
        return made(reply)

    monkeypatch.setattr(WebSocketProtocol, "handle_connect", see)
    monkeypatch.setattr(frames, "json_bytes", make)
    with Raw(client, body=ASK) as raw:
        raw.received(struct.pack("!BBH", 0x88, 16, 1002))  # the close frame that says why
        until(lambda: application.lifecycle.active == 0)
