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
_PIECE_BYTES = 16 << 10  # what is parsed before looking how many requests wait
_MOST_SILENT = 64 << 10  # bytes without an end of a head, or a part of a body
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
    """HTTP/1.1 by httptools, over joined writes; gives way to WebSockets, and to nothing else.

    A client that owes a head, or more of a body, has the time of an idle connection for it.
    """

    _running: RequestResponseCycle | None = None
    _unparsed = b""  # while too many requests wait
    _silent = 0  # bytes of a head, or behind a body, that the parser may be keeping
    _in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        joined = JoinedWrites(transport, self.loop)
        super().connection_made(cast(asyncio.Transport, joined))
        self._wait_for_client()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left: uvicorn tells the newest request, and this the one that runs."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        self._unparsed = b""
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has come, unless too many requests wait."""
        self._unparsed = self._unparsed + data if self._unparsed else data
        self._parse()

    def _parse(self) -> None:
        while self._unparsed and len(self.pipeline) < _PIPELINED:
            piece = self._unparsed[:_PIECE_BYTES]
            self._unparsed = self._unparsed[_PIECE_BYTES:]
            self._silent += len(piece)
            self._feed(piece)
            if self._silent > _MOST_SILENT:
                self._hang_up("The head of the request is too long.")
        if self._in_body:
            self._wait_for_client()

    def _feed(self, data: bytes) -> None:
        """Parse it. Nothing is logged that a client could write at will."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if self.scope["method"] == "CONNECT":
                    self._hang_up("This server is not a proxy.")
                    return
                rest = data[upgrade.args[0] :]
                if self._opens_socket():
                    rest, self._unparsed, self._in_body = rest + self._unparsed, b"", False
                    self.handle_websocket_upgrade()
                    cast(asyncio.Protocol, self.transport.get_protocol()).data_received(rest)
                    return
                # The parser takes the body for another protocol: begin again without the offer.
                head = self._head_without_upgrade()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                data = head + rest
            except httptools.HttpParserError:
                self._hang_up("Invalid HTTP request received.")
                return

    def _hang_up(self, why: str) -> None:
        self._unparsed, self._in_body, self._silent = b"", False, 0
        self.send_400_response(why)

    def on_headers_complete(self) -> None:
        """Begin the request, or queue it behind another one."""
        self._silent, self._in_body = 0, True
        self._unset_keepalive_if_required()
        super().on_headers_complete()
        if 0 < len(self.pipeline) < _PIPELINED:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._silent = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is here: now the client waits for us."""
        self._silent, self._in_body = 0, False
        self._unset_keepalive_if_required()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin the next request, and read more if few wait."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._unparsed = b""
            return
        self._parse()
        if len(self.pipeline) >= _PIPELINED:
            self.flow.pause_reading()

    def _wait_for_client(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

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
