"""uvicorn's HTTP protocol, writing a reply's head and body in one call to the system."""

import asyncio
from typing import Any, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sruserve.server.patience import Patience

# Requests that wait behind one of the same connection before reading pauses. While it does not,
# a client that leaves is seen.
_PIPELINED = 16
_LONG_BYTES = 64 << 10  # what a transport is to know of at once, so that it can ask us to wait


class JoinedWrites:
    """A transport that joins what is written within one turn of the event loop."""

    __slots__ = ("_loop", "_parts", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Write at the end of this turn."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        if len(data) >= _LONG_BYTES:
            self._flush()

    def close(self) -> None:
        """Write what is left, then close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Protocol(Patience, HttpToolsProtocol):
    """HTTP/1.1 by httptools, over joined writes; gives way to WebSockets, and to nothing else."""

    _running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        joined = JoinedWrites(transport, self.loop)
        super().connection_made(cast(asyncio.Transport, joined))

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left: uvicorn tells the newest request, and this the one that runs."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has come. Nothing is logged that a client could write at will."""
        self._unset_keepalive_if_required()
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if self.scope["method"] == "CONNECT":
                    self.send_400_response("This server is not a proxy.")
                    return
                rest = data[upgrade.args[0] :]
                if self._opens_socket():
                    self.handle_websocket_upgrade()
                    cast(asyncio.Protocol, self.transport.get_protocol()).data_received(rest)
                    return
                # The parser takes the body for another protocol: begin again without the offer.
                head = self._head_without_upgrade()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                data = head + rest
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return

    def on_headers_complete(self) -> None:
        """Begin the request, or queue it behind another one."""
        super().on_headers_complete()
        if 0 < len(self.pipeline) < _PIPELINED:
            self.flow.resume_reading()

    def _opens_socket(self) -> bool:
        """Whether the head asks for a WebSocket, and no earlier reply is on its way."""
        asked = self.scope["method"] == "GET" and self._get_upgrade() == b"websocket"
        done = self.cycle is None or self.cycle.response_complete
        return asked and self.scope["http_version"] == "1.1" and done and not self.flow.write_paused

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.scope["method"].encode(), self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _should_upgrade(self) -> bool:
        return True  # asked only of a head that `data_received` takes out and begins again

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)
