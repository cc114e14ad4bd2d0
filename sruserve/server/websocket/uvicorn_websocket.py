"""uvicorn's WebSocket protocol with limits on the memory, logs and time of each client."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, cast

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets import http11
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import State

from sruserve.server.errors import Overloaded, ServeError
from sruserve.server.http.connections import Connections, PeerConnections
from sruserve.server.http.intake import BufferAccount, Intake, ReceiveLimits
from sruserve.server.http.parse_queue import Waiting
from sruserve.server.http.parse_turns import REQUEST_COST
from sruserve.server.http.write_timeout import WriteTimeout

# The HTTP parser has limited the head already, so it is not refused here.
http11.MAX_NUM_HEADERS, http11.MAX_LINE_LENGTH = 1 << 10, 128 << 10

_POLICY, _TRY_LATER = 1008, 1013  # codes of RFC 6455 and of its registry
# Bytes that are parsed at once: few, because frames may be tiny; more within a long frame.
_PIECE_BYTES, _LONG_PIECE_BYTES = 512, 4 << 10
# In units of `ParseTurns`.
_PIECE_COST, _FRAME_COST = 256, 64
_BYTES_PER_COST = 16


class WebSocketProtocol(ReceiveLimits, WriteTimeout, WebSocketsSansIOProtocol):
    """Reads frames as fast as the application takes them. Messages reach it as bytes.

    Received bytes count in the worker's `Intake` until the application has read their message.
    """

    _unread_bytes = 0  # of messages that the application has not read
    _app_waits = False  # the application waits for a message
    _head_bytes: int | None = None  # of the handshake's request, not parsed yet; None: not received
    on_leave: Callable[[], object] | None = None  # what to do when the client leaves
    _turn: asyncio.Future[None] | None = None  # the application waits for a turn

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.timeout_keep_alive = config.timeout_keep_alive
        self._unparsed = bytearray()
        self._intake: Intake = app_state["intake"]
        self._turns, self._disconnects = self._intake.turns, self._intake.disconnects
        self._connections: Connections = app_state["connections"]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the connection from HTTP."""
        super().connection_made(transport)
        http = cast(asyncio.Transport, transport).get_protocol()
        self._peer: PeerConnections = http.hand_over()  # type: ignore[attr-defined]
        self._buffer_account = BufferAccount(self._intake, self._peer)
        transport.set_protocol(self)  # so that it is notified when the connection is lost

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the data of a client that has left."""
        self.detached = True
        while not self.queue.empty():
            self.queue.get_nowait()
        self._take_turn()
        leave, self.on_leave = self.on_leave, None
        if leave is not None:
            leave()
        self.forget_arrival()
        self._unparsed.clear()
        self._turns.forget(self)
        self._disconnects.forget(self.transport)
        self._connections.remove(self, self._peer)
        if self.handshake_initiated and hasattr(self, "scope"):
            self.scope.pop("connection", None)  # type: ignore[typeddict-item]
        super().connection_lost(exc)

    def handle_connect(self, event: Request) -> None:
        """Handle the request for a WebSocket."""
        super().handle_connect(event)
        event.headers.clear()  # the parser keeps the request; the scope has the headers
        if not self.close_sent:
            self.scope["connection"] = self  # type: ignore[typeddict-unknown-key]

    def data_received(self, data: bytes) -> None:
        """Buffer received data, and parse a piece of it.

        The first data is the head of the request for a WebSocket, and nothing else.
        """
        if self._head_bytes is None:
            self._head_bytes = len(data)
        self._unparsed += data
        self._received += len(data)
        if self._turns.budget > 0:
            self.parse_more()
        elif self._unparsed:
            self._wait()
            self._count()

    def claim(self, owner: Hashable) -> None:
        """Count the bytes for an owner, a tenant or a client's address; raises `Overloaded`."""
        if not self.detached:
            self._buffer_account.claim(owner)

    def is_receiving(self, scope: Any) -> bool:
        """A handshake has no body."""
        del scope
        return False

    def has_read(self, size: int) -> None:
        """Record that the application has read a message of `size` bytes."""
        self._unread_bytes -= size
        self._count()

    def _partial(self) -> int:
        """Bytes of a message that is not complete."""
        fragments = len(self.frames[0]) if self.frames else 0
        return fragments + len(self.conn.reader.buffer)

    def _count(self) -> None:
        partial = self._partial()
        size = self._undecrypted_bytes + len(self._unparsed) + partial + self._unread_bytes
        if self._is_discarding():
            self._buffer_account.lower(size)
        else:
            self.count(size, partial > 0)

    def _is_discarding(self) -> bool:
        return self.detached or self.transport.is_closing()

    def _is_reading_paused(self) -> bool:
        return self.read_paused or bool(self._unparsed or self._undecrypted_bytes)

    def stop_receiving(self, problem: ServeError) -> None:
        """Close with the error's code in the close frame."""
        self._unparsed.clear()
        self.frames.clear()
        self.conn.reader.discard()
        self._buffer_account.lower(self._unread_bytes)  # others may need the room in the same turn
        code = _TRY_LATER if isinstance(problem, Overloaded) else _POLICY
        self.conn.fail(code, problem.code)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()

    async def turn(self) -> None:
        """Wait for a turn among the connections before a message that waited is answered."""
        if not self.detached:
            self._turn = self.loop.create_future()
            self._turns.wait(self)
            await self._turn

    @property
    def waiting(self) -> Waiting:
        """What of the connection waits."""
        return self.kind_of(len(self._unparsed))

    def kind_of(self, size: int) -> Waiting:
        """What `size` received bytes are that wait."""
        is_short = self._turn is None and size <= _PIECE_BYTES
        return Waiting.SHORT if is_short else Waiting.LONG

    def _take_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None and not turn.done():
            turn.set_result(None)

    def parse_more(self) -> None:
        """Take this connection's turn: let a message be answered, and parse a piece."""
        if self._turn is not None:
            self._turns.spend(REQUEST_COST, self.owner)
            self._take_turn()
        self._parse_piece()
        self._count()

    def _wait(self) -> None:
        """Pause reading, and wait for a turn to parse the rest."""
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()
        self._disconnects.watch(self.transport)
        self._turns.wait(self)

    def _parse_piece(self) -> None:
        # the rest waits for the handshake's answer, and while the application has a message
        answered = self.handshake_complete or not self.handshake_initiated
        taken = self.queue.empty() or self.close_sent
        if not self._unparsed or self.transport.is_closing() or not (answered and taken):
            return
        size = min(_LONG_PIECE_BYTES, max(_PIECE_BYTES, len(self.conn.reader.buffer)))
        if self._head_bytes:  # a piece ends where the head does, since frames wait for its answer
            size = min(size, self._head_bytes)
            self._head_bytes -= size
        piece = bytes(self._unparsed[:size])
        del self._unparsed[:size]
        self._turns.spend(_PIECE_COST + len(piece) // _BYTES_PER_COST, self.owner)
        super().data_received(piece)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
        elif self._unparsed:
            self._wait()
        else:
            self._go_on()

    async def receive(self) -> ASGIReceiveEvent:
        """The next message; reading resumes."""
        self._app_waits = True
        message = await self.queue.get()
        self._app_waits = False
        self._go_on()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        """Send, and wait until the client has taken most of it."""
        if self.close_sent:  # for example for an invalid frame, while a reply was computed
            raise ClientDisconnected
        await super().send(message)
        if self.initial_response is not None:  # the handshake was refused, which completes it
            self.handshake_complete = True
        self._go_on()  # the handshake may be answered, or the socket closed
        await self.writable.wait()

    def _go_on(self) -> None:
        if self._unparsed:
            self._turns.wait(self)
        elif self.read_paused and self.queue.empty() and not self.transport.is_closing():
            self.read_paused = False
            self._disconnects.forget(self.transport)
            self.transport.resume_reading()
        elif self.read_paused:
            self._disconnects.watch(self.transport)

    def handle_events(self) -> None:
        """Charge this turn for parsed frames, and handle them."""
        self._turns.spend(_FRAME_COST * len(self.conn.events), self.owner)
        super().handle_events()

    def send_receive_event_to_app(self) -> None:
        """Queue a complete message."""
        if not self.close_sent:
            self._unread_bytes += len(self.frames[0])
        super().send_receive_event_to_app()
        if self.read_paused and not self._app_waits:  # else reading resumes at once
            self._disconnects.watch(self.transport)

    def handle_text(self, event: Frame) -> None:
        """Text frames pass through as bytes; the JSON parser validates UTF-8."""
        self.handle_bytes(event)

    def handle_bytes(self, event: Frame) -> None:
        """Handle a message or its first fragment; fragments are joined as they arrive."""
        whole = event.fin
        event.data, event.fin = bytearray(event.data), False
        super().handle_bytes(event)
        event.data = b""  # the parser keeps its last frame
        if whole:
            self.send_receive_event_to_app()

    def handle_cont(self, event: Frame) -> None:
        """Handle another fragment of a message."""
        message: Any = self.frames[0]
        message += event.data
        event.data = b""  # the parser keeps its last frame
        if event.fin:
            self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        """Answer a ping, unless the client does not read."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def keepalive_timeout(self) -> None:
        """Close the connection, unless reading was paused, so that the pong could not be seen."""
        if not self.read_paused:
            super().keepalive_timeout()
            return
        self.pong_timer = self.pending_ping_payload = None
        self.schedule_ping()

    def shutdown(self) -> None:
        """Close the socket because the server stops."""
        if self.conn.state is State.OPEN:
            super().shutdown()
        else:  # not open yet, or closed
            self.stop_keepalive()
            self.transport.close()
