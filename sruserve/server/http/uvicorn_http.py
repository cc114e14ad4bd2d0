"""uvicorn's HTTP protocol, bounded in what it holds, and writing head and body together."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from sruserve.server.errors import HeadTooLarge, Overloaded, ServeError
from sruserve.server.http.coalescing import CoalescingTransport
from sruserve.server.http.connections import Connections, Place
from sruserve.server.http.departures import Flow
from sruserve.server.http.intake import Arriving, Inflow, Intake
from sruserve.server.http.parse_turns import REQUEST_COST
from sruserve.server.http.write_timeout import WriteTimeout

_PIPELINED = 16  # requests that wait behind one of the same connection before reading pauses
_MOST_SILENT = 64 << 10  # bytes without an end of a head, or a part of a body
_MOST_TARGET = 8 << 10  # bytes of a path and its query: splitting more would hold up the loop
_MOST_HEADERS = 256
_MOST_DIGITS = 19  # of a body's length: Python does not read thousands of digits
_MOST_OFFER = 1 << 10  # bytes of the headers that ask for another protocol, read in one go
_END = b"\r\n\r\n"  # of a head, and of a chunked body
# The parser cannot be stopped within a piece, so none has more than one head, or many chunks.
_PIECE_BYTES, _CHUNKS_PIECE_BYTES = 1 << 10, 4 << 10
_BODY_PIECE_BYTES = 16 << 10  # of a body whose length is known: nothing else is in it
# In units of `ParseTurns`. A piece costs that, and one for each byte that is not of a body.
_PIECE_COST = 256
_BODY_BYTES_PER_COST = 64
_COST_PER_OFFER_BYTE = 8


class HttpProtocol(Arriving, WriteTimeout, HttpToolsProtocol):
    """HTTP/1.1 by httptools, over joined writes; gives way to WebSockets, and to nothing else.

    What has come and is not read yet counts in the worker's `Intake`. A request that comes too
    slowly, or when too much is held already, is not received to its end.

    problem: why the request that was coming is not received to its end.
    """

    problem: ServeError | None = None
    _running: RequestResponseCycle | None = None
    flow: Flow
    url = b""
    _silent = 0  # bytes of a head, or behind a body, that the parser may be keeping
    _heads = 0  # bytes of the heads of requests that wait
    _with_app = 0  # bytes of a body that the application has, and goes on receiving
    _in_body = False
    _taken = 0  # bytes of the body that the parser has found
    _of_body = 0  # those of them that were in the last piece
    _deaf = False  # what comes is dropped: the connection ends with the next reply
    _idle_until: float | None = None  # of a connection that waits for its client
    _lingers = False  # the last reply is sent, and the client is still sending
    _wrong = "Invalid HTTP request received."  # what is said of a request that cannot be
    _leave: Callable[[], object] | None = None  # what to do when the client leaves

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._unparsed = bytearray()  # while too many requests wait, or this connection
        self._intake: Intake = app_state["intake"]
        self._turns = self._intake.turns
        self._all: Connections = app_state["connections"]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        joined = CoalescingTransport(transport, self.loop, self._linger)
        super().connection_made(cast(asyncio.Transport, joined))
        self.flow = Flow(self.transport, self._intake.departures)
        place = self._all.add(self.client[0] if self.client else "")
        self._inflow = Inflow(self._intake, place)
        if place is not None:
            self._place = place
            place.idle[self] = None
            self._wait_for_client()
        else:
            self._left = True
            self._answer(Overloaded("too many connections are open; close some, or retry later"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left: uvicorn tells the newest request, and this the one that runs."""
        if not self._left:
            self._all.remove(self, self.hand_over())
        self._end_timer()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        self._unparsed.clear()
        self._turns.forget(self)
        self._intake.departures.forget(self.transport)
        self.pipeline.clear()
        if self.scope is not None:
            self.scope.pop("connection", None)  # type: ignore[typeddict-item]
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has come, unless too many requests wait, or this turn has parsed enough."""
        if self._deaf:
            return
        self._received += len(data)
        if self._unparsed:
            self._unparsed += data
            self.flow.hold()
        elif (
            len(data) <= _PIECE_BYTES
            and self._turns.left > 0
            and not self._is_ahead()
            and data.count(_END) < 2  # of more than one head, each is a piece
        ):
            self._parse_piece(data)
        else:
            self._unparsed += data
            self._parse()
        if self._in_body or self._silent or self._unparsed or self.pipeline:
            self._count()

    def watch(self, leave: Callable[[], object] | None) -> None:
        """Call `leave` when the client of the request that runs leaves; None: no more."""
        self._leave = leave
        if leave is not None and self._left:
            leave()

    def claim(self, owner: Hashable) -> None:
        """From now on the bytes are a tenant's, or the client's; raises `Overloaded`."""
        if not self._left:
            self._inflow.claim(owner)

    def expect(self, length: int) -> None:
        """Raise `Overloaded` if a body of so many bytes would not fit now."""
        self._inflow.expect(length)

    def reading(self, size: int) -> None:
        """The application has so many bytes of a body whose end it waits for.

        Raises why the body will not be received to its end.
        """
        self._with_app = size
        if self.problem is not None:
            raise self.problem
        if not self._left:
            self._inflow.count(self._held())

    def has_read(self) -> None:
        """The application has the whole body, or wants no more of it."""
        self._with_app = 0
        self._inflow.lower(self._held())

    def is_receiving(self, scope: Any) -> bool:
        """Whether the body of that request is not complete."""
        return self._in_body and self.scope is scope

    def _held(self) -> int:
        """Bytes that have come and that nobody has read yet."""
        held = len(self._unparsed) + self._silent + self._heads + self._with_app
        if self._running is not None and not self._running.response_complete:
            held += len(self._running.body)
        return held + sum(len(cycle.body) for cycle, _ in self.pipeline)

    def _count(self) -> None:
        self.count(self._held(), self._in_body or self._silent > 0)

    def _is_deaf(self) -> bool:
        return self._deaf or self.transport.is_closing()

    def _waits_for_us(self) -> bool:
        return self.flow.read_paused or bool(self._unparsed)

    def give_up(self, problem: ServeError) -> None:
        """Receive no more. Whoever reads the request that is coming says why."""
        self._unparsed.clear()
        self._silent = 0
        coming = self.cycle
        busy = coming is not None and not coming.response_complete
        if busy and self._in_body:
            self._deaf, self.problem = True, problem
            coming.body, coming.keep_alive = bytearray(), False
            coming.message_event.set()
        elif busy:  # the next request has no reply, since those before it are not answered yet
            self._deaf, coming.keep_alive = True, False
        elif self._in_body:  # it is answered already
            self.transport.abort()
        else:
            self._answer(problem)
        while not self._inflow.lower(self._held()) and self.pipeline:
            # the newest requests that wait have no reply either: the connection ends before them
            self.pipeline.popleft()
            last = self.pipeline[0][0] if self.pipeline else self._running
            assert last is not None
            last.keep_alive = False
        if busy and not self.pipeline and self._is_free():
            self._answer(problem)  # none of those that waited had begun

    def _answer(self, problem: ServeError) -> None:
        """Tell a problem where there is no request that could be answered, and hang up."""
        self._deaf = True
        body = problem.body()
        told = {**problem.headers, "content-type": "application/json", "connection": "close"}
        head = [f"{name}: {value}\r\n".encode() for name, value in told.items()]
        head.append(b"content-length: %d\r\n\r\n" % len(body))
        self.transport.write(STATUS_LINE[problem.status] + b"".join(head) + body)
        self.transport.close()

    def _linger(self) -> bool:
        """Whether the connection stays open a little, for a client that is still sending.

        Closed at once, it would take the reply from the client.
        """
        if not self._in_body or self._lingers:
            return False
        self._deaf = self._lingers = True
        self._unparsed.clear()
        self.flow.release()
        self.cycle.body = bytearray()
        self._inflow.lower(0)
        self._place.idle[self] = None
        self.flow.resume_reading()
        self.transport.write_eof()
        self._end_timer()
        self.timeout_keep_alive_task = self.loop.call_later(
            self._intake.grace_seconds, self.transport.abort
        )
        return True

    def hand_over(self) -> Place:
        """Let another protocol go on with the connection; the place is its own from now on."""
        self._left = True
        self._place.idle.pop(self, None)
        self._end_timer()
        cast(CoalescingTransport, self.transport).forget()
        self.flow.release()
        self.forget_arrival()
        return self._place

    def parse_more(self) -> None:
        """Begin a request or parse a piece of what waits, when others have had their turn."""
        if self._lingers or self.transport.is_closing():
            self._unparsed.clear()
        else:
            self._go_on()
        if not self._unparsed:
            self.flow.release()
        if not self._left and not self._deaf:
            self._count()

    def _go_on(self) -> None:
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
            if self._turns.left <= 0 or self._is_ahead():
                self._turns.wait(self)
                return
            self._parse_next()
        if not self._unparsed:
            self.flow.release()

    def _is_free(self) -> bool:
        return self._running is None or self._running.response_complete

    def _is_ahead(self) -> bool:
        """Whether what comes is behind a request that is not answered: it waits for its turn."""
        return bool(self.pipeline) or not (self._in_body or self._is_free())

    def _may_begin(self) -> bool:
        return bool(self.pipeline) and self._is_free()

    def _begin_next(self) -> None:
        """Begin the request that has waited longest, and read more if few wait."""
        self._start_asgi_task(*self.pipeline.pop())
        if not self.pipeline:
            self._heads = 0
        if len(self.pipeline) < _PIPELINED:
            self.flow.resume_reading()

    def _may_parse(self) -> bool:
        return bool(self._unparsed) and len(self.pipeline) < _PIPELINED

    def _parse_next(self) -> None:
        size = min(self._length() - self._taken, _BODY_PIECE_BYTES) if self._in_body else 0
        if size <= 0:
            most = _CHUNKS_PIECE_BYTES if self._in_body else _PIECE_BYTES
            end = self._unparsed.find(_END, 0, most)
            size = end + len(_END) if end >= 0 else most
        piece = bytes(self._unparsed[:size])
        del self._unparsed[:size]
        self._parse_piece(piece)

    def _length(self) -> int:
        """The length of the body that is coming; 0: not known."""
        for name, value in self.headers:
            if name == b"transfer-encoding":
                return 0
            if name == b"content-length":
                return int(value)
        return 0

    def _parse_piece(self, piece: bytes) -> None:
        earlier, self._of_body = self._silent, 0
        self._silent += len(piece)
        self._feed(piece)
        cost = len(piece) - self._of_body + self._of_body // _BODY_BYTES_PER_COST
        self._turns.spend(_PIECE_COST + cost, self.owner)
        if earlier and not self._silent:  # at its end, all of a head is read once more
            self._turns.spend(earlier, self.owner)
        if self._silent and self._is_head_too_large():
            self._refuse_head()

    def _is_head_too_large(self) -> bool:
        return self._silent > _MOST_SILENT or self._has_too_much()

    def _has_too_much(self) -> bool:
        return len(self.url) > _MOST_TARGET or len(self.headers or ()) > _MOST_HEADERS

    def _refuse_head(self) -> None:
        self._stop_parsing()
        self._answer(
            HeadTooLarge(
                "the head of the request is too long or has too many headers; send up to "
                f"{_MOST_HEADERS} headers and {_MOST_SILENT} bytes, of these up to "
                f"{_MOST_TARGET} of the path and its query, and {_MOST_OFFER} of the headers that "
                "ask for another protocol, such as a WebSocket"
            )
        )

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
                offer, rest = self._offer_length(), data[upgrade.args[0] :]
                if offer > _MOST_OFFER:
                    self._refuse_head()
                    return
                if self._opens_socket():
                    self._turns.spend(offer * _COST_PER_OFFER_BYTE, self.owner)
                    rest, self._unparsed, self._in_body = rest + self._unparsed, bytearray(), False
                    self.handle_websocket_upgrade()
                    self._forget_request()
                    cast(asyncio.Protocol, self.transport.get_protocol()).data_received(rest)
                    return
                # The parser takes the body for another protocol: begin again without the offer.
                head = self._head_without_upgrade()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                data = head + rest
            except httptools.HttpParserError:
                if self._is_head_too_large():
                    self._refuse_head()
                else:
                    self._hang_up(self._wrong)
                return

    def _hang_up(self, why: str) -> None:
        self._stop_parsing()
        self.send_400_response(why)

    def _stop_parsing(self) -> None:
        self._unparsed.clear()
        self._in_body, self._silent, self._deaf = False, 0, True

    def on_headers_complete(self) -> None:
        """Begin the request, or queue it behind another one."""
        self._unset_keepalive_if_required()
        if self._has_too_much():
            raise ValueError
        if wrong := self._what_is_wrong():
            self._wrong = wrong
            raise ValueError(wrong)
        self.scope["connection"] = self  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()
        self._heads = self._heads + self._silent if self.pipeline else 0
        self._silent, self._in_body, self._taken = 0, True, 0
        if 0 < len(self.pipeline) < _PIPELINED:
            self.flow.resume_reading()

    def _what_is_wrong(self) -> str | None:
        """Why the head that has come is not a request's that this server could understand."""
        version, hosts = self.parser.get_http_version(), 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding" and value.lower() != b"chunked":
                return "The only transfer encoding is chunked."
            elif name == b"content-length" and len(value) > _MOST_DIGITS:
                return f"A Content-Length must have up to {_MOST_DIGITS} digits."
        if version not in ("1.1", "1.0"):
            return "This server speaks HTTP/1.1."
        if hosts != 1 and (hosts or version == "1.1"):
            return "A request must have one Host header."
        return None

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. A trailer is ignored: nothing may read it as a header."""
        if self._in_body:
            return
        name = name.lower()  # as uvicorn does it, without another call for each header
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._silent = 0
        self._taken += len(body)
        self._of_body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is here: now the client waits for us, unless it has the reply already."""
        self._silent, self._in_body = 0, False
        self._began, self._received = None, 0
        if self.cycle is not None and self.cycle.response_complete:
            self._forget_request()
            self._inflow.lower(self._held())
            self._wait_for_client()
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """What waits goes on when others have had their turn."""
        if self._lingers:
            return
        self.server_state.total_requests += 1
        if not self.pipeline:
            self.flow.resume_reading()
            self._wait_for_client()
            self._place.idle[self] = None
            if not self._in_body:
                self._forget_request()
        if self.transport.is_closing():
            self._unparsed.clear()
            return
        if self.pipeline or self._unparsed:
            self._turns.wait(self)
        if self._inflow.counts:
            self._count()

    def _forget_request(self) -> None:
        """An idle connection keeps no head, but for the beginning of the next one."""
        if self._running is None or self._running.scope is self.scope:
            self.headers, self.scope = [], None  # type: ignore[assignment]
        self.cycle, self._running = None, None  # type: ignore[assignment]

    def _wait_for_client(self) -> None:
        """Hang up on a client that stays silent. Requests are frequent, so the timer stays."""
        self._idle_until = self.loop.time() + self.timeout_keep_alive
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_at(
                self._idle_until, self.timeout_keep_alive_handler
            )

    def timeout_keep_alive_handler(self) -> None:
        """The timer of an idle connection is due, or that of one which was idle."""
        self.timeout_keep_alive_task = None
        if self._idle_until is None:
            return
        if self.loop.time() < self._idle_until:
            self.timeout_keep_alive_task = self.loop.call_at(
                self._idle_until, self.timeout_keep_alive_handler
            )
        else:
            super().timeout_keep_alive_handler()

    def _unset_keepalive_if_required(self) -> None:
        self._idle_until = None

    def _end_timer(self) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    def _opens_socket(self) -> bool:
        """Whether the head asks for a WebSocket, and no earlier reply is on its way."""
        asked = self.scope["method"] == "GET" and self._get_upgrade() == b"websocket"
        done = self.cycle is None or self.cycle.response_complete
        return asked and self.scope["http_version"] == "1.1" and done and not self.flow.write_paused

    def _offer_length(self) -> int:
        return sum(
            len(value)
            for name, value in self.headers
            if name in (b"connection", b"upgrade") or name.startswith(b"sec-websocket-")
        )

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.scope["method"].encode(), self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _should_upgrade(self) -> bool:
        return True  # asked only of a head that `data_received` takes out and begins again

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        self._place.idle.pop(self, None)
        super()._start_asgi_task(cycle, app)
