"""A client of the line protocol (`line_protocol.py`), and a server that speaks it, too."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from sruserve.server.app import Application
from sruserve.server.lifecycle import Lifecycle
from tests.server.conftest import Serve
from tests.server.line_protocol import LineEndpoint, serve_lines
from tests.server.observing import until


class Lines:
    """A client."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 60)
        self._file = self._socket.makefile("rw", newline="\n")

    def ask(self, line: str) -> str:
        self._file.write(line + "\n")
        self._file.flush()
        return self._file.readline().rstrip("\n")

    def rest(self) -> list[str]:
        """The lines before the last one, "."."""
        return list(iter(lambda: self._file.readline().rstrip("\n"), "."))

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@contextmanager
def lines(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, *names: str, **settings: Any
) -> Iterator[tuple[httpx.Client, Lines]]:
    """A server of models, with a client of each protocol."""
    ports: list[int] = []
    servers: list[asyncio.Server] = []
    beginning: list[asyncio.Task[None]] = []
    add, stop = Application._add_endpoints, Lifecycle.stop

    async def also_stop(lifecycle: Lifecycle) -> None:
        servers.pop().close()
        await stop(lifecycle)

    def also_lines(application: Application) -> Any:
        inference = add(application)

        async def listen() -> None:
            answer = partial(serve_lines, LineEndpoint(application))
            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            servers.append(server)
            ports.append(server.sockets[0].getsockname()[1])

        beginning.append(asyncio.create_task(listen()))
        return inference

    monkeypatch.setattr(Application, "_add_endpoints", also_lines)
    monkeypatch.setattr(Lifecycle, "stop", also_stop)
    with serve(*names, **settings) as (client, _):
        until(lambda: bool(ports))
        connected = Lines(ports[0])
        try:
            yield client, connected
        finally:
            connected.close()
