"""uvicorn's WebSocket protocol, bounded: no client makes it hold, log or compute without end."""

import asyncio
from typing import Any

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame
from websockets.protocol import State

from sruserve.server.patience import Patience

_PIECE_BYTES = 16 << 10  # what is parsed in one turn of the event loop: frames may be tiny


class WebSocketProtocol(Patience, WebSocketsSansIOProtocol):
    """Frames, as fast as they are taken. Messages reach the application as bytes."""

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

    def data_received(self, data: bytes) -> None:
        """Keep what has come, and parse some of it."""
        self._unparsed += data
        self._parse()

    def _parse(self) -> None:
        # before the handshake's answer, and while the application has a message, the rest waits
        answered = self.handshake_complete or not self.handshake_initiated
        taken = self.queue.empty() or self.close_sent
        if not self._unparsed or self.transport.is_closing() or not (answered and taken):
            return
        piece = bytes(self._unparsed[:_PIECE_BYTES])
        del self._unparsed[:_PIECE_BYTES]
        super().data_received(piece)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
        elif self._unparsed:
            if not self.read_paused:
                self.read_paused = True
                self.transport.pause_reading()
            self.loop.call_soon(self._parse)
        else:
            self._go_on()

    async def receive(self) -> ASGIReceiveEvent:
        """The next message; then there is room for more."""
        message = await self.queue.get()
        self._go_on()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        """Send, and wait until the client has taken most of it."""
        await super().send(message)
        if self.initial_response is not None:  # the handshake was refused, and that is its end
            self.handshake_complete = True
        self._go_on()  # the handshake may have been answered, or the end told
        await self.writable.wait()

    def _go_on(self) -> None:
        if self._unparsed:
            self.loop.call_soon(self._parse)
        elif self.read_paused and self.queue.empty() and not self.transport.is_closing():
            self.read_paused = False
            self.transport.resume_reading()

    def handle_text(self, event: Frame) -> None:
        """Whoever parses JSON sees for himself whether it is UTF-8."""
        self.handle_bytes(event)

    def handle_bytes(self, event: Frame) -> None:
        """A message, or the beginning of one; its parts are joined as they come."""
        whole = event.fin
        event.data, event.fin = bytearray(event.data), False
        super().handle_bytes(event)
        if whole:
            self.send_receive_event_to_app()

    def handle_cont(self, event: Frame) -> None:
        """More of a message."""
        message: Any = self.frames[0]
        message += event.data
        if event.fin:
            self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        """Answer, but not to a client that reads no answers."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def keepalive_timeout(self) -> None:
        """Hang up, unless we did not look for the answer."""
        if not self.read_paused:
            super().keepalive_timeout()
            return
        self.pong_timer = self.pending_ping_payload = None
        self.schedule_ping()

    def shutdown(self) -> None:
        """The server ends."""
        if self.conn.state is State.OPEN:
            super().shutdown()
        else:  # it is not open yet, or no more
            self.stop_keepalive()
            self.transport.close()
