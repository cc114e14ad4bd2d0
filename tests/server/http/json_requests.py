"""JSON requests over connections that a test holds."""

import json
import socket
from typing import Any

import httpx


def connect(client: httpx.Client, path: str, body: dict[str, Any], **headers: str) -> socket.socket:
    """A raw connection on which a request has been sent."""
    content = json.dumps(body).encode()
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\n{more}content-length: {len(content)}\r\n\r\n"
    connection = socket.create_connection((client.base_url.host, client.base_url.port or 0))
    connection.sendall(head.encode() + content)
    return connection
