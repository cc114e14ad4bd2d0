"""One HTTP request: its bounded body, its reply, and a client that may leave."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, MutableMapping
from functools import partial
from typing import Any, Protocol
from urllib.parse import parse_qs

from sruserve.server.errors import Draining, ServeError
from sruserve.server.http.error_mapping import error_body, status_of
from sruserve.server.http.errors import BodyTooLarge, UnsupportedMediaType
from sruserve.server.http.json_turns import SHORT_JSON_BYTES, turn_to_parse
from sruserve.server.http.request_head import (
    JSON_TYPE,
    Headers,
    describe,
    refusal_headers,
    request_id,
)
from sruserve.server.http.shortcuts import take_body, write_reply
from sruserve.server.observation.observation import Description
from sruserve.server.offload import owner
from sruserve.server.tasks.caller import Caller, ClientDisconnected
from sruserve.server.tasks.limits import FREE_BYTES, InputLimits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# If the server does not report a disconnect, a task watches for it; most jobs end earlier.
_WATCH_AFTER_SECONDS = 0.25
_REPLY_HEADERS = b"content-type: application/json\r\ncontent-length: %d\r\nx-request-id: %b\r\n"
_PIECE_BYTES = 32 << 10  # of a reply; a transport that holds one pauses its writer


async def send_but_last(send: Send, body: bytes) -> bytes:
    """Send a long body as fast as the client reads, except the last piece, which is returned."""
    last = max(0, len(body) - 1) // _PIECE_BYTES * _PIECE_BYTES
    for begin in range(0, last, _PIECE_BYTES):
        piece = body[begin : begin + _PIECE_BYTES]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    return body[last:]


class ReplyWriter(Protocol):
    """Sends or stores a reply. started: the reply has begun."""

    started: bool

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None: ...
    async def send(self, body: bytes, *, more: bool = False) -> None: ...
    async def reply(self, body: bytes) -> None: ...


class RequestConnection(Protocol):
    """Counts the bytes of a request body in the application, and reports disconnects.

    on_leave: called when the client leaves. detached: it has left.
    """

    on_leave: Callable[[], object] | None
    detached: bool

    def claim(self, owner: Hashable) -> None: ...
    def take_turn(self, cost: int) -> asyncio.Future[None] | None: ...
    def expect(self, length: int) -> None: ...
    def reading(self, size: int) -> None: ...
    def has_read(self) -> None: ...
    def is_alone(self) -> bool: ...
    def is_receiving(self, scope: Message) -> bool: ...


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body is longer than {limit} bytes; send fewer inputs at once, or ask the operator to "
        "raise SRUSERVE_MAX_BODY_BYTES"
    )


class HttpCall(Caller):
    """A request over HTTP.

    connection: counts the bytes of the body; None if the server does not count them.
    path_values: the values of the path's parameters, in order.
    status: of the reply; None: none was begun.
    """

    __slots__ = (
        *("_headers", "_receive", "_scope", "_send", "_watching"),
        *("connection", "path_values", "status"),
    )

    def __init__(
        self, scope: Message, receive: Receive, send: Send, path_values: tuple[str, ...] = ()
    ) -> None:
        self._headers: Headers = dict(reversed(scope["headers"]))
        credentials = self._headers.get(b"authorization")
        super().__init__(None if credentials is None else credentials.decode("latin-1"))
        self._scope, self._receive, self._send = scope, receive, send
        self.connection: RequestConnection | None = scope.get("connection")
        self.path_values = path_values
        self._watching: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self.status: int | None = None

    def header(self, name: bytes) -> str | None:
        """The value of a header. name: in lower case."""
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def method(self) -> str:
        """The HTTP method, for example GET."""
        return str(self._scope["method"])

    @property
    def path(self) -> str:
        """The decoded path."""
        return str(self._scope["path"])

    def describe(self) -> Description:
        scope = self._scope
        return describe("http", scope, self._headers, scope["method"], self.number, self.status)

    def query(self, name: str) -> str | None:
        """The first value of a query parameter."""
        values = parse_qs(self._scope["query_string"].decode("latin-1")).get(name)
        return values[0] if values else None

    async def body(self, limits: InputLimits) -> bytes:
        """The whole body, which counts until `submitted`.

        Raises `BodyTooLarge` if it is too long, also where its headers say otherwise, and
        `Overloaded` or `RequestTimeout` if it is not received to its end.
        """
        connection, limit = self.connection, limits.body_bytes
        length = int(self._headers.get(b"content-length", -1))  # below 0: unknown
        if length > limit:  # before uvicorn sends 100 Continue
            raise _too_large(limit)
        is_counted = not 0 <= length <= FREE_BYTES
        if connection is not None:
            connection.claim(owner.get())  # the owner may differ from the last request's
            if is_counted:
                connection.expect(max(0, length))
        whole = take_body(self._receive)
        body, more = (whole, False) if whole is not None else await self._receive_part()
        if not more and len(body) <= limit:
            if is_counted:
                if connection is not None:
                    connection.has_read()
                self.count_body(limits, len(body))
            return body
        parts = bytearray(body)  # a list of small parts would need far more memory
        try:
            while more and len(parts) <= limit:
                if connection is not None:
                    connection.reading(len(parts))
                body, more = await self._receive_part()
                parts += body
            if len(parts) > limit:
                raise _too_large(limit)
        finally:
            if connection is not None:
                connection.has_read()
        self.count_body(limits, len(parts))
        return bytes(parts)

    async def _receive_part(self) -> tuple[bytes, bool]:
        """The next part of the body, and whether more parts follow."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        return message.get("body", b""), message.get("more_body", False)

    async def json_body(self, limits: InputLimits) -> bytes:
        """The whole body, once it may be parsed; raises `InputTooLong` if its JSON is too much.

        Raises `UnsupportedMediaType` for a packed body.
        """
        coding = self._headers.get(b"content-encoding")
        if coding and coding.lower() != b"identity":
            raise UnsupportedMediaType(
                "the body has a Content-Encoding, and only KServe's /infer unpacks bodies: send it "
                "as it is, without this header"
            )
        body = await self.body(limits)
        if len(body) > SHORT_JSON_BYTES:
            await turn_to_parse(body, self.connection, self)
        return body

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the status line and the headers."""
        self.started, self.status = True, status
        headers.append((b"x-request-id", request_id(self._headers, self.number)))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, body: bytes, *, more: bool = False) -> None:
        """Send a part of the reply's body in pieces, as fast as the client reads."""
        if len(body) > _PIECE_BYTES:
            body = await send_but_last(self._send, body)
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def reply(self, body: bytes) -> None:
        """Answer 200 with JSON."""
        if len(body) <= _PIECE_BYTES:
            headers = _REPLY_HEADERS % (len(body), request_id(self._headers, self.number))
            if write_reply(self._send, headers, body):
                self.started, self.status = True, 200
                return
        await self.reply_as(200, body)

    async def reply_as(
        self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = (JSON_TYPE,)
    ) -> None:
        """Answer with a complete body of any type."""
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.send(body)

    async def refuse(self, error: ServeError) -> None:
        """Answer with an error."""
        await self.refuse_as(error, status_of(type(error)), error_body(error))

    async def refuse_as(self, error: ServeError, status: int, body: bytes) -> None:
        """Answer with an error in another protocol's shape."""
        headers = refusal_headers(error, len(body))
        connection = self.connection
        unread = connection is not None and connection.is_receiving(self._scope)
        if unread or isinstance(error, Draining):
            headers.append((b"connection", b"close"))  # nothing more is read from this client
        await self.start(status, headers)
        await self.send(body)

    @property
    def alone(self) -> bool:
        return self.connection is not None and self.connection.is_alone()

    def watch(self, done: asyncio.Future[Any]) -> None:
        connection = self.connection
        if connection is None:
            self._watching = self.loop.call_later(_WATCH_AFTER_SECONDS, self._start_watching, done)
            return
        connection.on_leave = partial(self._withdraw, done)
        if connection.detached:
            self._withdraw(done)

    def unwatch(self) -> None:
        if self.connection is not None:
            self.connection.on_leave = None
        elif self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def _start_watching(self, done: asyncio.Future[Any]) -> None:
        self._watching = self.loop.create_task(self._await_disconnect(done))

    async def _await_disconnect(self, done: asyncio.Future[Any]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._withdraw(done)

    def _withdraw(self, done: asyncio.Future[Any]) -> None:
        """Cancel `done`, because the client has left."""
        if not done.done():
            self._disconnected = True
            done.cancel()
