"""`/v1/stream`: WebSockets whose frames go on with one stream each."""

import asyncio
from collections import deque

from sruserve.server.auth import Tenant
from sruserve.server.budget import Budget, Hold
from sruserve.server.errors import Draining, Overloaded, RouteNotFound, StateTooLarge
from sruserve.server.http.call import HttpCall, Message, Receive, Send
from sruserve.server.http.endpoint import HttpEndpoint
from sruserve.server.http.origins import Origins
from sruserve.server.metrics.metrics import UNKNOWN_MODEL, SocketMetrics
from sruserve.server.tasks.caller import ClientDisconnected
from sruserve.server.tasks.requests import Request
from sruserve.server.websocket.session import PATH, Session, SessionEndpoint, WebSocketRequest

_DONE, _RESTARTING = 1000, 1012  # codes of RFC 6455
# What waits behind the frame in work before the client has to.
_MOST_WAITING, _MOST_WAITING_BYTES = 16, 64 << 10


class WebSocketEndpoint(HttpEndpoint):
    """Opens sockets, and ends them when the server stops.

    most: sockets that may be open, of a tenant half of them unless it is the only one. They do not
        give way to others, as idle connections do.
    """

    path, schema = PATH, Request

    def __init__(self, frames: SessionEndpoint, origins: Origins, most: int) -> None:
        super().__init__(frames.tenants, [UNKNOWN_MODEL])
        self._frames, self._origins = frames, origins
        share = max(1, most // 2) if self.tenants.count > 1 else most
        self._places = Budget(most, _too_many, share)
        self._open: set[WebSocketConnection] = set()
        self._draining = False
        self._sockets = SocketMetrics()

    async def connect(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve a client until it leaves."""
        with self._places.hold() as place:
            await self._connect(scope, receive, send, place)

    async def _connect(self, scope: Message, receive: Receive, send: Send, place: Hold) -> None:
        handshake = _Handshake(scope, receive, send, place)
        try:
            await self(handshake)
        except ClientDisconnected:
            return
        if not handshake.accepted:
            return
        # An open socket keeps no head: without API keys, nobody reads this header either.
        authorization = handshake.authorization if self.tenants.count else None
        scope["headers"] = []
        socket = WebSocketConnection(self._frames, scope, receive, send, authorization)
        self._open.add(socket)
        self._sockets.opened()
        try:
            if self._draining:
                socket.drain()
            await socket.run()
        except asyncio.CancelledError:
            pass  # the server has stopped, and no longer waits for this client
        finally:
            self._open.discard(socket)
            self._sockets.closed()

    async def serve(self, call: HttpCall, tenant: Tenant) -> None:
        """Let a client in, or raise."""
        assert isinstance(call, _Handshake)
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

    def drain(self) -> None:
        """Let no more clients in; those that are here get their states when their frames end."""
        self._draining = True
        for socket in self._open:
            socket.drain()


class WebSocketConnection:
    """One client: its frames are answered one after the other, in their order."""

    def __init__(
        self,
        frames: SessionEndpoint,
        scope: Message,
        receive: Receive,
        send: Send,
        authorization: str | None,
    ) -> None:
        self._frames, self._receive, self._send = frames, receive, send
        self._connection, self._authorization = scope.get("connection"), authorization
        self._waiting = _FrameQueue()
        self._frame: WebSocketRequest | None = None
        self._stream: Session | None = None
        self._draining = False

    async def run(self) -> None:
        """Answer until the client is done, has left, or has to leave."""
        reader = asyncio.create_task(self._read())
        connection = self._connection
        if connection is not None:
            connection.watch(self._leave)  # it is seen also while the reader waits for room
        try:
            while (data := await self._next()) is not None:
                self._frame = self._new_frame(data)
                del data  # the frame lets go of it
                await self._frames(self._frame)
                self._frame.let_go()
                self._stream = self._frame.stream
                if self._frame.last:
                    await self._close(_DONE)
                    return
            if self._draining:
                await self._hand_over()
        except ClientDisconnected:
            pass
        finally:
            reader.cancel()
            if connection is not None:
                connection.watch(None)
            if self._stream is not None:
                self._stream.release()

    def drain(self) -> None:
        """Answer no more frames than the one in work, then hand the state over."""
        self._draining = True
        self._waiting.end()

    async def _read(self) -> None:
        """Take frames as they come, as far as there is room."""
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                break
            data = message.get("bytes")
            await self._waiting.put(message["text"].encode() if data is None else data)
            del message, data
        self._leave()

    async def _next(self) -> bytes | None:
        """The next frame; one that waited for another takes turns with other connections."""
        connection = self._connection
        if connection is not None and self._waiting:
            await connection.turn()
        return await self._waiting.take()

    def _leave(self) -> None:
        """The client has left: nobody waits for its frames."""
        self._waiting.end()
        if self._frame is not None:
            self._frame.leave()

    async def _hand_over(self) -> None:
        """The last frame of a server that stops."""
        problem = Draining("the server is stopping: continue with this state on another replica")
        try:
            state = self._stream.token() if self._stream is not None else None
        except StateTooLarge:
            state = None
        await self._new_frame(b"").tell({"error": problem.told, "state": state})
        await self._close(_RESTARTING)

    def _new_frame(self, data: bytes) -> WebSocketRequest:
        return WebSocketRequest(
            self._connection, self._send, self._authorization, data, self._stream
        )

    async def _close(self, code: int) -> None:
        try:
            await self._send({"type": "websocket.close", "code": code})
        except OSError:
            raise ClientDisconnected from None


class _Handshake(HttpCall):
    """The request that opens a socket.

    place: among all sockets; empty until the client may have it.
    """

    __slots__ = ("accepted", "path", "place", "scope")

    def __init__(self, scope: Message, receive: Receive, send: Send, place: Hold) -> None:
        async def answer(message: Message) -> None:
            try:
                await send({**message, "type": f"websocket.{message['type']}"})
            except OSError:
                raise ClientDisconnected from None

        super().__init__(scope, receive, answer)
        self.path: str = scope["path"]
        self.scope, self.place = scope, place
        self.accepted = False

    async def accept(self) -> None:
        """Open the socket."""
        await self._receive()  # that there is a client
        await self._send({"type": "accept"})
        self.accepted = self.started = True


def _too_many() -> Overloaded:
    return Overloaded("too many WebSockets are open; close some, or retry later")


class _FrameQueue:
    """Frames behind the one in work, bounded in number and bytes."""

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
        while len(self._frames) >= _MOST_WAITING or self._bytes > _MOST_WAITING_BYTES:
            await self._change()

    async def take(self) -> bytes | None:
        """The next frame; None when there will be no more."""
        while not self._frames and not self._ended:
            await self._change()
        if self._ended:
            return None
        data = self._frames.popleft()
        self._bytes -= len(data)
        self._changed.set()
        return data

    def end(self) -> None:
        """Let nothing more be taken, and forget what waits."""
        self._ended, self._bytes = True, 0
        self._frames.clear()
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
