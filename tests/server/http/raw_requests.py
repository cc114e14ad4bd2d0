"""Requests as bytes, over connections that a test holds."""

import json
import socket

import httpx

from tests.server.http.raw_replies import send

SECONDS = 60
GET = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = b"POST /v1/score HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
)


def connect(client: httpx.Client, data: bytes) -> socket.socket:
    connection = socket.create_connection((client.base_url.host, client.base_url.port or 0))
    connection.settimeout(SECONDS)
    send(connection, data)
    return connection


def head(length: int, *more: bytes) -> bytes:
    lines = b"".join(line + b"\r\n" for line in more)
    return b"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n%b\r\n" % (length, lines)


def frame(data: bytes, size: int) -> bytes:
    """The beginning of a message of `size` bytes."""
    return b"\x81\xff" + size.to_bytes(8, "big") + bytes(4) + data


def code(reply: bytes) -> str:
    """The code of the error in a reply."""
    error_code: str = json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"]
    return error_code
