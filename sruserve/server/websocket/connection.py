"""`/v1/stream`: WebSockets, each of which continues one stream frame by frame."""

import asyncio
from collections import deque

from sruserve.server.auth import Tenant
from sruserve.server.budget import Budget, Hold
from sruserve.server.errors import Draining, Overloaded, ServeError, StateTooLarge
from sruserve.server.http.call import Message, Receive, Send
from sruserve.server.http.error_mapping import error_fields
from sruserve.server.http.errors import RouteNotFound
from sruserve.server.http.origins import Origins
from sruserve.server.http.request_head import parent_of
from sruserve.server.metrics.metrics import UNKNOWN_MODEL, SocketMetrics
from sruserve.server.observation.traceparent import TraceParent
from sruserve.server.offload import LONG_BYTES, offload
from sruserve.server.tasks.caller import ClientDisconnected
from sruserve.server.tasks.endpoint import Endpoint
from sruserve.server.tasks.requests import Request
from sruserve.server.websocket.endpoint import PATH, SessionEndpoint
from sruserve.server.websocket.handshake import Handshake
from sruserve.server.websocket.request import WebSocketRequest
from sruserve.server.websocket.session import Session

_DONE, _RESTARTING = 1000, 1012  # codes of RFC 6455
# Frames that may wait for the current one before reading pauses.
_MAX_WAITING, _MAX_WAITING_BYTES = 16, 64 << 10


class WebSocketEndpoint(Endpoint[Handshake]):
    """Opens sockets, and closes them when the server stops.

    max_sockets: the limit of open sockets, and half of it for one of two tenants; one of more may
        have half of what the others leave. Idle sockets do not give way to new ones, as idle
        connections do.
    """

    path, schema = PATH, Request

    def __init__(self, sessions: SessionEndpoint, origins: Origins, max_sockets: int) -> None:
        super().__init__(sessions.tenants, [UNKNOWN_MODEL])
        self._sessions, self._origins = sessions, origins
        count = self.tenants.count
        share = max(1, max_sockets // 2) if count > 1 else max_sockets
        self._places = Budget(max_sockets, _too_many, share, yields=count > 2)
        self._open: set[WebSocketConnection] = set()
        self._draining = False
        self._sockets = SocketMetrics()

    async def connect(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve a client until it leaves."""
        with self._places.hold() as place:
            await self._connect(scope, receive, send, place)

    async def _connect(self, scope: Message, receive: Receive, send: Send, place: Hold) -> None:
        handshake = Handshake(scope, receive, send, place)
        try:
            await self(handshake)
        except ClientDisconnected:
            return
        if not handshake.accepted:
            return
        # An open socket keeps no headers; without API keys, not even this one.
        authorization = handshake.authorization if self.tenants.count else None
        parent = parent_of(scope) if handshake.observation is not None else None
        scope["headers"] = []
        socket = WebSocketConnection(self._sessions, scope, receive, send, authorization, parent)
        self._open.add(socket)
        self._sockets.opened()
        try:
            if self._draining:
                socket.drain()
            await socket.run()
        except asyncio.CancelledError:
            pass  # the server has stopped and does not wait for this client
        finally:
            self._open.discard(socket)
            self._sockets.closed()

    async def serve(self, call: Handshake, tenant: Tenant) -> None:
        """Accept a client, or raise."""
        self._origins.check(call.scope)
        if call.path != PATH:
            raise RouteNotFound(f"there is no WebSocket at {call.path[:100]}; open {PATH}")
        if self._draining:
            raise Draining("the server is stopping; connect to another replica")
        call.place.move_to(tenant.owner)
        call.place.grow(1)
        if call.connection is not None:
            call.connection.claim(tenant.owner)
        await call.accept()

    async def refuse(self, call: Handshake, problem: ServeError) -> None:
        await call.refuse(problem)

    def drain(self) -> None:
        """Accept no more clients, and send the others their states after their current frames."""
        self._draining = True
        for socket in self._open:
            socket.drain()


class WebSocketConnection:
    """One client, whose frames are answered in their order, one at a time.

    parent: the span that opened the socket, to whose trace all frames belong.
    """

    def __init__(
        self,
        sessions: SessionEndpoint,
        scope: Message,
        receive: Receive,
        send: Send,
        authorization: str | None,
        parent: TraceParent | None = None,
    ) -> None:
        self._sessions, self._receive, self._send = sessions, receive, send
        self._connection, self._authorization = scope.get("connection"), authorization
        self._parent = parent
        self._waiting = _FrameQueue()
        self._frame: WebSocketRequest | None = None
        self._stream: Session | None = None
        self._draining = False

    async def run(self) -> None:
        """Answer frames until the client closes or leaves, or the server stops."""
        reader = asyncio.create_task(self._read())
        connection = self._connection
        if connection is not None:
            connection.on_leave = self._leave  # also while the reader waits for room
            if connection.detached:
                self._leave()
        try:
            while (data := await self._next()) is not None:
                self._frame = self._new_frame(data)
                del data  # the frame drops it once it is read
                await self._sessions(self._frame)
                self._frame.drop_data()
                self._stream = self._frame.stream
                if self._frame.interrupted:
                    self.drain()
                elif self._frame.last:
                    await self._close(_DONE)
                    return
            if self._draining:
                await self._hand_over()
        except ClientDisconnected:
            pass
        finally:
            reader.cancel()
            if connection is not None:
                connection.on_leave = None
            if self._stream is not None:
                self._stream.release()

    def drain(self) -> None:
        """Answer the current frame, then send the state and close."""
        self._draining = True
        self._waiting.end()

    async def _read(self) -> None:
        """Queue frames as they arrive, while there is room."""
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                break
            data = message.get("bytes")
            await self._waiting.put(message["text"].encode() if data is None else data)
            del message, data
        self._leave()

    async def _next(self) -> bytes | None:
        """The next frame; a frame that waited takes turns with those of other connections."""
        connection = self._connection
        if connection is not None and self._waiting:
            await connection.turn()
        return await self._waiting.take()

    def _leave(self) -> None:
        """Drop the frames of a client that has left."""
        self._waiting.end()
        if self._frame is not None:
            self._frame.leave()

    async def _hand_over(self) -> None:
        """Send the last frame of a stopping server."""
        problem = Draining("the server is stopping: continue with this state on another replica")
        try:
            state = None
            if self._stream is not None:
                state = await offload(self._stream.states.nbytes > LONG_BYTES, self._stream.token)
        except StateTooLarge:
            state = None
        await self._new_frame(b"").send({"error": error_fields(problem), "state": state})
        await self._close(_RESTARTING)

    def _new_frame(self, data: bytes) -> WebSocketRequest:
        return WebSocketRequest(
            self._connection, self._send, self._authorization, data, self._stream, self._parent
        )

    async def _close(self, code: int) -> None:
        try:
            await self._send({"type": "websocket.close", "code": code})
        except OSError:
            raise ClientDisconnected from None


def _too_many() -> Overloaded:
    return Overloaded(
        "too many WebSockets are open (limit: a quarter of SRUSERVE_MAX_CONNECTIONS, and half "
        "of what others leave for one of several API keys); close some, or retry later"
    )


class _FrameQueue:
    """Frames that wait for the current one, bounded in number and bytes."""

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._ended = False
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._frames)

    async def put(self, data: bytes) -> None:
        """Add a frame, then wait until there is room for another one."""
        self._frames.append(data)
        self._bytes += len(data)
        self._changed.set()
        while len(self._frames) >= _MAX_WAITING or self._bytes > _MAX_WAITING_BYTES:
            await self._change()

    async def take(self) -> bytes | None:
        """The next frame; None after the end."""
        while not self._frames and not self._ended:
            await self._change()
        if self._ended:
            return None
        data = self._frames.popleft()
        self._bytes -= len(data)
        self._changed.set()
        return data

    def end(self) -> None:
        """End the queue and drop its frames."""
        self._ended, self._bytes = True, 0
        self._frames.clear()
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
