"""uvicorn's HTTP protocol with limits on memory and parsing; head and body leave in one write."""

import asyncio
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.server import ServerState

from sruserve.server.errors import Overloaded
from sruserve.server.http.coalescing import CoalescingTransport
from sruserve.server.http.connections import Connections, PeerConnections
from sruserve.server.http.disconnects import Flow
from sruserve.server.http.heads import exceeds_limits, syntax_error
from sruserve.server.http.intake import BufferAccount, Intake
from sruserve.server.http.piece_parser import PieceParser
from sruserve.server.http.request_queue import MAX_PIPELINED, drop_request, forget_connection


class HttpProtocol(PieceParser):
    """HTTP/1.1 by httptools, with coalesced writes: a connection from its beginning to its end.

    on_leave: called when the client of the running request leaves.
    """

    on_leave: Callable[[], object] | None = None

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.access_log = config.access_log and self.access_log  # not for any handler's sake
        self._unparsed = bytearray()  # received bytes that wait for their turn
        self._intake: Intake = app_state["intake"]
        self._turns = self._intake.turns
        self._connections: Connections = app_state["connections"]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count a new connection, or refuse it if too many are open."""
        joined = CoalescingTransport(transport, self.loop, self._linger)
        super().connection_made(cast(asyncio.Transport, joined))
        self.flow = Flow(self.transport, self._intake.disconnects)
        peer = self._connections.add(self.client[0] if self.client else "")
        self._buffer_account = BufferAccount(self._intake, peer)
        if peer is not None:
            self._peer = peer
            peer.idle[self] = None
            self._wait_for_client()
        else:
            self.detached = True
            self._answer(Overloaded("too many connections are open; close some, or retry later"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the running request that its client has left; uvicorn notifies the newest one."""
        if not self.detached:
            self._connections.remove(self, self.hand_over())
        self._end_timer()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        self._unparsed.clear()
        self._turns.forget(self)
        self._intake.disconnects.forget(self.transport)
        for cycle in (self.cycle, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not self._running:
                drop_request(cycle)
        self.pipeline.clear()
        if self._running is not None:
            forget_connection(self._running.scope)
        self.cycle = self._running  # type: ignore[assignment]
        self.headers, self.scope = [], None  # type: ignore[assignment]
        on_leave, self.on_leave = self.on_leave, None
        if on_leave is not None:
            on_leave()
        super().connection_lost(exc)

    def hand_over(self) -> PeerConnections:
        """Hand the connection over to another protocol, which removes it from the returned peer."""
        self.detached = True
        self._peer.forget(self)
        self._end_timer()
        cast(CoalescingTransport, self.transport).forget()
        self.flow.release()
        self.forget_arrival()
        return self._peer

    def on_headers_complete(self) -> None:
        """Begin the request, or queue it if an earlier one is not answered."""
        self._idle_until = None
        if exceeds_limits(self.url, self.headers):
            raise ValueError
        parser, scope, earlier = self.parser, self.scope, self.cycle
        version = parser.get_http_version()
        if error := syntax_error(version, self.url, self.headers):
            self._bad_request = error
            raise ValueError(error)
        scope["connection"] = self  # type: ignore[typeddict-unknown-key]
        scope["http_version"], scope["method"] = version, parser.get_method().decode("ascii")
        if not parser.should_upgrade():  # else `_feed` handles the head
            url = httptools.parse_url(self.url)
            path = url.path.decode("ascii")
            scope["path"] = unquote(path) if "%" in path else path
            scope["raw_path"], scope["query_string"] = url.path, url.query or b""
            self.cycle = self._new_cycle(keep_alive=version != "1.0" and parser.should_keep_alive())
            if earlier is None or earlier.response_complete:
                self._start_asgi_task(self.cycle, self.app)
            else:
                self.flow.pause_reading()
                self.pipeline.appendleft((self.cycle, self.app))
        self._queued_head_bytes = (
            self._queued_head_bytes + self._parser_bytes if self.pipeline else 0
        )
        self._parser_bytes, self._in_body, self._body_bytes = 0, True, 0
        if 0 < len(self.pipeline) < MAX_PIPELINED:
            self.flow.resume_reading()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. Trailers are ignored, because nothing may read them as headers."""
        if self._in_body:
            return
        name = name.lower()  # as in uvicorn, without a second call for each header
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        self._parser_bytes = 0
        self._body_bytes += len(body)
        self._piece_body_bytes += len(body)
        cycle = self.cycle
        if self.parser.should_upgrade() or cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """Complete the request. If it is answered already, wait for the next one."""
        self._parser_bytes, self._in_body = 0, False
        self._began, self._received = None, 0
        self._peer.unfinished.pop(self, None)
        if self.cycle is not None and self.cycle.response_complete:
            self._forget_request()
            self._buffer_account.lower(self._buffered_bytes())
            self._wait_for_client()
        elif not self.parser.should_upgrade():
            self.cycle.more_body = False
            self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        """Complete the reply. Queued requests and bytes wait for their turn."""
        if self._is_lingering:
            return
        self.server_state.total_requests += 1
        if not self.pipeline:
            if self.flow.read_paused:
                self.flow.resume_reading()
            self._wait_for_client()
            self._peer.idle[self] = None
            if not self._in_body:
                self._forget_request()
        if self.transport.is_closing():
            self._unparsed.clear()
            return
        if self.pipeline or self._unparsed:
            self._turns.wait(self)
        if self._buffer_account.counts:
            self._count()
