"""A WebSocket over TLS, in one thread.

The library's synchronous client reads and writes on two threads, which OpenSSL does not allow: the
session tickets that follow a handshake then sometimes cost it its first write.
"""

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Origin


class Socket:
    """An open WebSocket."""

    def __init__(self, runner: asyncio.Runner, connection: ClientConnection) -> None:
        self._runner, self._connection = runner, connection

    def send(self, message: str) -> None:
        self._runner.run(self._connection.send(message))

    def recv(self, timeout: float) -> str | bytes:
        return self._runner.run(asyncio.wait_for(self._connection.recv(), timeout))


@contextmanager
def open_websocket(
    url: str, context: ssl.SSLContext, origin: Origin | None = None
) -> Iterator[Socket]:
    """Open a WebSocket, for a page if there is an origin; raises what `connect` raises."""
    with asyncio.Runner() as runner:

        async def opened() -> ClientConnection:
            return await connect(
                url, ssl=context, origin=origin, ping_interval=None, open_timeout=60
            )

        connection = runner.run(opened())
        try:
            yield Socket(runner, connection)
        finally:
            runner.run(connection.close())
