"""Replies as they come over a raw connection, in any number of pieces."""

import re
import socket
from contextlib import suppress


def send(connection: socket.socket, data: bytes) -> None:
    """Send all of it, or what the server takes before it hangs up: its reply may have come."""
    with suppress(OSError):
        connection.sendall(data)


def next_reply(connection: socket.socket) -> bytes:
    """The head and the body of the next reply, which says how long it is."""
    data = b""
    while not (end := _end_of(data)) or len(data) < end:
        part = connection.recv(65536)
        assert part, data
        data += part
    return data


def all_replies(connection: socket.socket) -> bytes:
    """What a connection says until it is closed."""
    data = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            data += part
    return data


def _end_of(data: bytes) -> int:
    """How long the reply is whose beginning this is; 0: its head is not whole."""
    head, separator, _ = data.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: (\d+)", head)
    return len(head) + 4 + (int(length[1]) if length else 0) if separator else 0
