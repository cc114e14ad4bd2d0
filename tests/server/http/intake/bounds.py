"""The bounds of the servers that take little."""

import socket

import httpx

from sruserve.server.app import Application
from tests.server.http.raw_requests import SECONDS

Running = tuple[httpx.Client, Application]
BUDGET = 1 << 20
LONGEST = 512 << 10
GRACE = 3.0  # seconds


def ended(connection: socket.socket) -> bool:
    """Whether the server has answered or closed a connection."""
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    finally:
        connection.settimeout(SECONDS)
    return True
