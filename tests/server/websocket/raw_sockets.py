"""Sockets that speak the protocol by hand."""

import json
import socket
import struct

import httpx

from tests.server.websocket.sockets import SECONDS


class Raw:
    """A client that speaks the protocol by hand."""

    def __init__(self, client: httpx.Client, head: bytes = b"", body: bytes = b"") -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(SECONDS)
        self.socket.connect((client.base_url.host, client.base_url.port or 0))
        self.socket.sendall(
            b"GET /v1/stream HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            + head + b"\r\n" + body
        )  # fmt: skip

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def received(self, ending: bytes) -> bytes:
        """All that comes up to `ending`, or to the end."""
        data = b""
        while ending not in data and (part := self.socket.recv(65536)):
            data += part
        return data


def frame(data: bytes, opcode: int = 1, last: bool = True) -> bytes:
    """A frame of a client."""
    assert len(data) < 65536
    if len(data) > 125:
        length = struct.pack("!BH", 0x80 | 126, len(data))
    else:
        length = struct.pack("!B", 0x80 | len(data))
    return bytes([(0x80 if last else 0) | opcode]) + length + bytes(4) + data


ASK = frame(json.dumps({"model": "question", "input": "a b", "more": False}).encode())
