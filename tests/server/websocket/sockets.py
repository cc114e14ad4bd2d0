"""Sockets of the package `websockets`, patient with a busy machine."""

from typing import Any

import httpx
import websockets.sync.client as websockets

SECONDS = 120  # in which everything must have happened


def open_socket(client: httpx.Client, **options: Any) -> websockets.ClientConnection:
    """A socket of the server that an httpx client talks to."""
    url = str(client.base_url).replace("http", "ws", 1).rstrip("/") + "/v1/stream"
    options = {"open_timeout": SECONDS, "compression": None, "ping_interval": None} | options
    return websockets.connect(url, **options)
