"""uvicorn's HTTP protocol with limits on memory and parsing; head and body leave in one write."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from sruserve.server.errors import Overloaded, ServeError
from sruserve.server.http.close_delimited import close_delimited
from sruserve.server.http.coalescing import CoalescingTransport
from sruserve.server.http.connections import Connections, PeerConnections
from sruserve.server.http.disconnects import Flow
from sruserve.server.http.error_mapping import error_body, headers_of, status_of
from sruserve.server.http.heads import (
    MAX_HEAD_BYTES,
    MAX_UPGRADE_BYTES,
    exceeds_limits,
    syntax_error,
    too_large,
    upgrade_bytes,
    without_upgrade,
)
from sruserve.server.http.idle_timeout import IdleTimeout
from sruserve.server.http.intake import BufferAccount, Intake, ReceiveLimits
from sruserve.server.http.parse_queue import Waiting
from sruserve.server.http.parse_turns import REQUEST_COST
from sruserve.server.http.write_timeout import WriteTimeout

_MAX_PIPELINED = 16  # queued requests of one connection before reading pauses
_END = b"\r\n\r\n"  # of a head, and of a chunked body
# The parser cannot stop within a piece, so a piece has at most one head, and few chunks.
_PIECE_BYTES, _CHUNKS_PIECE_BYTES = 1 << 10, 4 << 10
_BODY_PIECE_BYTES = 16 << 10  # of a body whose length is known
# In units of `ParseTurns`. A piece costs this, and one unit for each byte outside of a body.
_PIECE_COST = 256
_BODY_BYTES_PER_COST = 64
_COST_PER_UPGRADE_BYTE = 8


class HttpProtocol(ReceiveLimits, WriteTimeout, IdleTimeout):
    """HTTP/1.1 by httptools, with coalesced writes. The only upgrade is to a WebSocket.

    Received bytes count in the worker's `Intake` until the application has read them. A request
    that arrives too slowly, or exceeds the budget, is not received to its end.

    problem: why the current request is not received to its end.
    on_leave: called when the client of the running request leaves.
    """

    problem: ServeError | None = None
    on_leave: Callable[[], object] | None = None
    _running: RequestResponseCycle | None = None
    flow: Flow
    url = b""
    _parser_bytes = 0  # of a head, or after a body, that the parser may keep
    _queued_head_bytes = 0  # of pipelined requests
    _app_body_bytes = 0  # of an incomplete body, in the application
    _in_body = False
    _body_bytes = 0  # of the body, as far as it is parsed
    _piece_body_bytes = 0  # those of the last piece
    _discards = False  # received bytes are dropped: the connection ends with the next reply
    _is_lingering = False  # the last reply is sent, but the client is still sending
    _bad_request = "Invalid HTTP request received."  # the reply to a malformed request

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
                _drop_request(cycle)
        self.pipeline.clear()
        if self._running is not None:
            _forget_connection(self._running.scope)
        self.cycle = self._running  # type: ignore[assignment]
        self.headers, self.scope = [], None  # type: ignore[assignment]
        on_leave, self.on_leave = self.on_leave, None
        if on_leave is not None:
            on_leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, unless this turn has parsed enough or too many requests wait."""
        if self._discards:
            return
        self._received += len(data)
        if self._unparsed:
            self._unparsed += data
            self.flow.hold()
        elif (
            len(data) <= _PIECE_BYTES
            and self._turns.budget > 0
            and (self._running is None or not self._is_pipelined())
            and data.count(_END) < 2  # each head is a piece of its own
        ):
            self._parse_piece(data)
        else:
            self._unparsed += data
            self._parse()
        if self._in_body or self._parser_bytes or self._unparsed or self.pipeline:
            self._count()

    def claim(self, owner: Hashable) -> None:
        """Count the bytes for an owner, a tenant or a client's address; raises `Overloaded`."""
        if not self.detached:
            before = self._buffer_account.owner
            self._buffer_account.claim(owner)
            if self._unparsed and self._buffer_account.owner != before:
                self._turns.move(self)

    def expect(self, length: int) -> None:
        """Raise `Overloaded` if a body of this length would not fit now."""
        self._buffer_account.expect(length)

    def reading(self, size: int) -> None:
        """Count `size` bytes of an incomplete body that the application has received.

        Raises the error that ended the reception.
        """
        self._app_body_bytes = size
        if self.problem is not None:
            raise self.problem
        if not self.detached:
            self._buffer_account.count(self._buffered_bytes())

    def has_read(self) -> None:
        """Record that the application has the whole body, or stops receiving it."""
        self._app_body_bytes = 0
        self._buffer_account.lower(self._buffered_bytes())

    def is_alone(self) -> bool:
        """Whether the worker has no request on any connection but one that runs."""
        return len(self.tasks) == 1

    def is_receiving(self, scope: Any) -> bool:
        """Whether the body of this request is incomplete."""
        return self._in_body and self.scope is scope

    def _buffered_bytes(self) -> int:
        """Received bytes that nobody has read yet."""
        size = self._undecrypted_bytes + len(self._unparsed) + self._parser_bytes
        size += self._queued_head_bytes + self._app_body_bytes
        if self._running is not None and not self._running.response_complete:
            size += len(self._running.body)
        return size + sum(len(cycle.body) for cycle, _ in self.pipeline)

    def _count(self) -> None:
        self.count(self._buffered_bytes(), self._in_body or self._parser_bytes > 0)

    def _is_discarding(self) -> bool:
        return self._discards or self.transport.is_closing()

    def _is_reading_paused(self) -> bool:
        return self.flow.read_paused or bool(self._unparsed or self._undecrypted_bytes)

    def stop_receiving(self, problem: ServeError) -> None:
        """Stop receiving. The application answers the current request with the problem."""
        self._unparsed.clear()
        self._parser_bytes = 0
        current = self.cycle
        busy = current is not None and not current.response_complete
        if busy and self._in_body:
            self._discards, self.problem = True, problem
            current.body, current.keep_alive = bytearray(), False
            current.message_event.set()
        elif busy:  # earlier requests are not answered yet, so the next one gets no reply
            self._discards, current.keep_alive = True, False
        elif self._in_body:  # the request is answered already
            self.transport.abort()
        else:
            self._answer(problem)
        while not self._buffer_account.lower(self._buffered_bytes()) and self.pipeline:
            # the newest queued requests get no reply either: the connection ends before them
            _drop_request(self.pipeline.popleft()[0])
            last = self.pipeline[0][0] if self.pipeline else self._running
            assert last is not None
            last.keep_alive = False
        if busy and not self.pipeline and self._is_free():
            self._answer(problem)  # no queued request had begun

    def _answer(self, problem: ServeError) -> None:
        """Reply with a problem that belongs to no request, and close the connection."""
        self._discards = True
        body = error_body(problem)
        headers = {**headers_of(problem), "content-type": "application/json", "connection": "close"}
        head = [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
        head.append(b"content-length: %d\r\n\r\n" % len(body))
        self.transport.write(STATUS_LINE[status_of(type(problem))] + b"".join(head) + body)
        self.transport.close()

    def _linger(self) -> bool:
        """Keep the connection open for a client that is still sending; returns whether it is.

        If the connection closed at once, the client would lose the reply.
        """
        if not self._in_body or self._is_lingering:
            return False
        self._discards = self._is_lingering = True
        self._unparsed.clear()
        self.flow.release()
        self.cycle.body = bytearray()
        self._buffer_account.lower(0)
        self._peer.idle[self] = None
        self.flow.resume_reading()
        self.transport.write_eof()
        self._end_timer()
        self.timeout_keep_alive_task = self.loop.call_later(
            self._intake.grace_seconds, self.transport.abort
        )
        return True

    def hand_over(self) -> PeerConnections:
        """Hand the connection over to another protocol, which removes it from the returned peer."""
        self.detached = True
        self._peer.idle.pop(self, None)
        self._end_timer()
        cast(CoalescingTransport, self.transport).forget()
        self.flow.release()
        self.forget_arrival()
        return self._peer

    @property
    def waiting(self) -> Waiting:
        """What of the connection waits."""
        return self.kind_of(len(self._unparsed))

    def kind_of(self, size: int) -> Waiting:
        """What `size` received bytes are that wait."""
        if self._is_pipelined():
            return Waiting.LONG
        if size <= _PIECE_BYTES:
            return Waiting.SHORT
        return Waiting.LONG if self._in_body else Waiting.HEAD

    def parse_more(self) -> None:
        """Take this connection's turn: begin a request, or parse a piece of the waiting bytes."""
        if self._is_lingering or self.transport.is_closing():
            self._unparsed.clear()
        else:
            self._begin_or_parse()
        if not self._unparsed:
            self.flow.release()
        if not self.detached and not self._discards:
            self._count()

    def _begin_or_parse(self) -> None:
        running = self._running
        if self._may_begin():
            self._begin_next()
        elif self._may_parse():
            self._parse_next()
        if self._running is not running:
            self._turns.spend(REQUEST_COST, self.owner)
        if self._may_begin() or self._may_parse():
            self._turns.wait(self)

    def _parse(self) -> None:
        while self._may_parse():
            if self._turns.budget <= 0 or self._is_pipelined():
                self._turns.wait(self)
                return
            self._parse_next()
        if not self._unparsed:
            self.flow.release()

    def _is_free(self) -> bool:
        return self._running is None or self._running.response_complete

    def _is_pipelined(self) -> bool:
        """Whether received bytes follow a request that is not answered: they wait for a turn."""
        return bool(self.pipeline) or not (self._in_body or self._is_free())

    def _may_begin(self) -> bool:
        return bool(self.pipeline) and self._is_free()

    def _begin_next(self) -> None:
        """Begin the oldest queued request, and resume reading if few are queued."""
        self._start_asgi_task(*self.pipeline.pop())
        if not self.pipeline:
            self._queued_head_bytes = 0
        if len(self.pipeline) < _MAX_PIPELINED:
            self.flow.resume_reading()

    def _may_parse(self) -> bool:
        return bool(self._unparsed) and len(self.pipeline) < _MAX_PIPELINED

    def _parse_next(self) -> None:
        size = min(self._length() - self._body_bytes, _BODY_PIECE_BYTES) if self._in_body else 0
        if size <= 0:
            max_bytes = _CHUNKS_PIECE_BYTES if self._in_body else _PIECE_BYTES
            end = self._unparsed.find(_END, 0, max_bytes)
            size = end + len(_END) if end >= 0 else max_bytes
        piece = bytes(self._unparsed[:size])
        del self._unparsed[:size]
        self._parse_piece(piece)

    def _length(self) -> int:
        """The length of the current body; 0: unknown."""
        for name, value in self.headers:
            if name == b"transfer-encoding":
                return 0
            if name == b"content-length":
                return int(value)
        return 0

    def _parse_piece(self, piece: bytes) -> None:
        earlier, self._piece_body_bytes = self._parser_bytes, 0
        self._parser_bytes += len(piece)
        self._feed(piece)
        if self._in_body and self._piece_body_bytes and self.cycle is not None:
            self.cycle.message_event.set()  # the application reads a part of the body
        cost = len(piece) - self._piece_body_bytes + self._piece_body_bytes // _BODY_BYTES_PER_COST
        self._turns.spend(_PIECE_COST + cost, self._buffer_account.owner)
        if earlier and not self._parser_bytes:  # at its end, the parser reads a head again
            self._turns.spend(earlier, self.owner)
        if self._parser_bytes and self._is_head_too_large():
            self._refuse_head()

    def _is_head_too_large(self) -> bool:
        return self._parser_bytes > MAX_HEAD_BYTES or exceeds_limits(self.url, self.headers)

    def _refuse_head(self) -> None:
        self._stop_parsing()
        self._answer(too_large())

    def _feed(self, data: bytes) -> None:
        """Parse data. Nothing is logged, so that no client can fill the log."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if self.scope["method"] == "CONNECT":
                    self._hang_up("This server is not a proxy.")
                    return
                size, rest = upgrade_bytes(self.headers), data[upgrade.args[0] :]
                if size > MAX_UPGRADE_BYTES:
                    self._refuse_head()
                    return
                if self._opens_websocket():
                    self._turns.spend(size * _COST_PER_UPGRADE_BYTE, self.owner)
                    rest, self._unparsed, self._in_body = rest + self._unparsed, bytearray(), False
                    self.handle_websocket_upgrade()
                    self._forget_request()
                    self.parser = None  # type: ignore[assignment]  # it refers to this protocol
                    cast(asyncio.Protocol, self.transport.get_protocol()).data_received(rest)
                    return
                # The parser takes the body for another protocol: parse again without the upgrade.
                version = self.parser.get_http_version()
                head = without_upgrade(self.scope["method"], self.url, version, self.headers)
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                data = head + rest
            except httptools.HttpParserError:
                if self._is_head_too_large():
                    self._refuse_head()
                else:
                    self._hang_up(self._bad_request)
                return

    def _hang_up(self, why: str) -> None:
        self._stop_parsing()
        self.send_400_response(why)

    def _stop_parsing(self) -> None:
        self._unparsed.clear()
        self._in_body, self._parser_bytes, self._discards = False, 0, True

    def on_headers_complete(self) -> None:
        """Begin the request, or queue it if an earlier one is not answered."""
        self._idle_until = None
        if exceeds_limits(self.url, self.headers):
            raise ValueError
        parser, scope, earlier = self.parser, self.scope, self.cycle
        version = parser.get_http_version()
        if error := syntax_error(version, self.headers):
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
        if 0 < len(self.pipeline) < _MAX_PIPELINED:
            self.flow.resume_reading()

    def _new_cycle(self, *, keep_alive: bool) -> RequestResponseCycle:
        return RequestResponseCycle(
            self.scope,
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            self.access_log,
            self.server_state.default_headers,
            asyncio.Event(),
            self.expect_100_continue,
            keep_alive,
            self.on_response_complete,
        )

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

    def _forget_request(self) -> None:
        """Free the head of the last request, so that idle connections keep none."""
        if self._running is None or self._running.scope is self.scope:
            self.headers, self.scope = [], None  # type: ignore[assignment]
        self.cycle, self._running = None, None  # type: ignore[assignment]

    def _opens_websocket(self) -> bool:
        """Whether the head requests a WebSocket and all earlier requests are answered."""
        is_upgrade = self.scope["method"] == "GET" and self._get_upgrade() == b"websocket"
        if not is_upgrade or self.scope["http_version"] != "1.1" or self.flow.write_paused:
            return False
        return self.cycle is None or self.cycle.response_complete

    def _should_upgrade(self) -> bool:
        return True  # only called for heads that `_feed` parses again without the upgrade

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = close_delimited(app)
        self._running = cycle
        self._peer.idle.pop(self, None)
        task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)


def _drop_request(cycle: RequestResponseCycle | None) -> None:
    """Free a request that never begins: it and its connection refer to each other."""
    if cycle is not None:
        _forget_connection(cycle.scope)
        cycle.body = bytearray()
        cycle.on_response = _do_nothing


def _forget_connection(scope: Any) -> None:
    scope.pop("connection", None)


def _do_nothing() -> None:
    """Replace `on_response_complete`, as uvicorn does for requests that have ended."""
