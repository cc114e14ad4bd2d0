"""One request on a hot route: its bounded body, its reply, and a client that may leave."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Hashable, MutableMapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from os import urandom
from time import perf_counter
from typing import Any, ClassVar, Protocol
from urllib.parse import parse_qs

from pydantic_core import to_json

from sruserve.server.api.limits import STEP_BYTES, InputLimits
from sruserve.server.api.parts import check_parts
from sruserve.server.budget import Hold
from sruserve.server.errors import BodyTooLarge, Draining, ServeError
from sruserve.server.intake import FREE_BYTES
from sruserve.server.metrics import UNKNOWN_MODEL
from sruserve.server.offload import LONG_BYTES, off_loop, owner

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON_TYPE = (b"content-type", b"application/json")
# Where the server does not tell who has left, a task has to watch; most jobs are done before.
_WATCH_AFTER_SECONDS = 0.25
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_PIECE_BYTES = 64 << 10  # as much as a transport takes before it asks its writer to wait

# Every process has its own prefix, so that ids differ between workers and restarts.
_prefix = urandom(6).hex()
_numbers = count(1)


def json_bytes(value: object) -> bytes:
    """JSON as every parser reads it: NaN and infinity become null."""
    return to_json(value, inf_nan_mode="null")


async def send_but_last(send: Send, body: bytes) -> bytes:
    """Send a long body as fast as the client takes it, up to its last piece, which is returned."""
    last = max(0, len(body) - 1) // _PIECE_BYTES * _PIECE_BYTES
    for begin in range(0, last, _PIECE_BYTES):
        piece = body[begin : begin + _PIECE_BYTES]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    return body[last:]


class Connection(Protocol):
    """Counts the bytes of a request body that the application receives, and tells who has left."""

    def watch(self, leave: Callable[[], object] | None) -> None: ...
    def claim(self, owner: Hashable) -> None: ...
    def expect(self, length: int) -> None: ...
    def reading(self, size: int) -> None: ...
    def has_read(self) -> None: ...
    def is_receiving(self, scope: Message) -> bool: ...


class Caller(Protocol):
    """Who waits for a job, over whatever protocol.

    number: an id of the request, for replies.
    """

    loop: asyncio.AbstractEventLoop
    number: str

    async def wait(self, done: asyncio.Future[Any]) -> None:
        """Wait for a job. If the client leaves first, withdraw it and raise `ClientGone`."""
        ...

    def count_more(self, limits: InputLimits, size: int) -> None:
        """Count what is read beside the body, unless it is short, until `submitted`.

        Raises `Overloaded`.
        """
        ...

    def submitted(self) -> None:
        """The job is in a queue, which counts the request from now on."""
        ...

    def unsent(self, hold: Hold) -> AbstractContextManager[object]:
        """The time in which a reply is made and sent, which `hold` counts."""
        ...


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body is longer than {limit} bytes; send less at once, or ask the operator to raise "
        "SRUSERVE_MAX_BODY_BYTES"
    )


class ClientGone(Exception):
    """The client closed the connection before its reply was complete."""


class Call:
    """A request that is being answered.

    begin: `time.perf_counter()` at its arrival.
    model: the name of the model that it is for, as far as that is known.
    started: the reply's status has been sent.
    keeps: its whole reply stays in memory until the request ends, also where it is streamed.
    """

    keeps: ClassVar[bool] = False

    __slots__ = (
        "_body", "_gone", "_receive", "_scope", "_send", "_watcher", "begin", "loop", "model",
        "number", "started",
    )  # fmt: skip

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.begin = perf_counter()
        self.loop = asyncio.get_running_loop()
        self.number = f"{_prefix}{next(_numbers):08x}"
        self.model = UNKNOWN_MODEL
        self.started = False
        self._scope, self._receive = scope, receive
        self._send = send
        self._gone = False
        self._watcher: asyncio.Task[None] | None = None
        self._body: Hold | None = None

    def header(self, name: bytes) -> str | None:
        """The value of a header, whose name is in lower case."""
        for each, value in self._scope["headers"]:
            if each == name:
                return str(value.decode("latin-1"))
        return None

    @property
    def connection(self) -> Connection | None:
        """What the request comes over, where that counts its bytes."""
        return self._scope.get("connection")

    @property
    def method(self) -> str:
        """GET, POST and so on."""
        return str(self._scope["method"])

    @property
    def path(self) -> str:
        """What was asked for, decoded."""
        return str(self._scope["path"])

    def query(self, name: str) -> str | None:
        """The first value of a parameter behind the path."""
        values = parse_qs(self._scope["query_string"].decode("latin-1")).get(name)
        return values[0] if values else None

    async def body(self, limits: InputLimits) -> bytes:
        """The whole body, which counts from then on until `submitted`.

        Raises `BodyTooLarge` if it is too long, whatever its headers said, and `Overloaded` or
        `RequestTimeout` if it is not received to its end.
        """
        length, connection, limit = (
            self.header(b"content-length"),
            self.connection,
            limits.body_bytes,
        )
        if length is not None and int(length) > limit:  # before the client is told to send it
            raise _too_large(limit)
        counted = length is None or int(length) > FREE_BYTES
        if connection is not None:
            connection.claim(owner.get())  # it may be another's than the request before
            if counted:
                connection.expect(int(length or 0))
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False) and len(body) <= limit:
            if counted:
                if connection is not None:
                    connection.has_read()
                self.count_body(limits, len(body))
            return body
        parts, size = [body], len(body)
        try:
            while message.get("more_body", False) and size <= limit:
                if connection is not None:
                    connection.reading(size)
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                parts.append(message.get("body", b""))
                size += len(parts[-1])
            if size > limit:
                raise _too_large(limit)
        finally:
            if connection is not None:
                connection.has_read()
        self.count_body(limits, size)
        return b"".join(parts)

    def count_body(self, limits: InputLimits, size: int) -> None:
        """Count a long body until `submitted`, or until the request ends; raises `Overloaded`.

        Once more: it has another size now.
        """
        if self._body is None:
            self._body = limits.count_body(size)
        else:
            self._body.resize(size if size > FREE_BYTES else 0)

    def count_more(self, limits: InputLimits, size: int) -> None:
        """Count what is read beside the body, too; raises `Overloaded`."""
        if self._body is None:
            self._body = limits.count_body(size)
        elif size > FREE_BYTES:
            self._body.grow(size)

    def submitted(self) -> None:
        """Count the body no more: its job is in a queue, or the request has ended."""
        body, self._body = self._body, None
        if body is not None:
            body.release()

    def take_body(self, limits: InputLimits, size: int) -> Hold:
        """What counts a step with its whole body, whether its client stays or not.

        The room of a long body is not given back in between. size: of the body. Raises
        `Overloaded`, and takes nothing.
        """
        if self._body is None:
            self._body = limits.count_body(0)
        self._body.resize(max(self._body.amount, size) + STEP_BYTES)
        body, self._body = self._body, None
        return body

    async def json_body(self, limits: InputLimits) -> bytes:
        """The whole body, of so few parts that reading it is short; raises `InputTooLong`."""
        body = await self.body(limits)
        await off_loop(len(body) > LONG_BYTES, check_parts, body, cost=len(body), caller=self)
        return body

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the status line and the headers."""
        self.started = True
        headers.append((b"x-request-id", self._request_id()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    def _request_id(self) -> bytes:
        """The client's own id of the request, if it sent a harmless one, else ours."""
        given = self.header(b"x-request-id") or ""
        return (given if _REQUEST_ID.fullmatch(given) else self.number).encode()

    async def send(self, body: bytes, *, more: bool = False) -> None:
        """Send a part of the reply's body, piece by piece, as fast as the client takes them."""
        if len(body) > _PIECE_BYTES:
            body = await send_but_last(self._send, body)
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def reply(self, body: bytes) -> None:
        """Answer 200 with JSON."""
        await self.start(200, [JSON_TYPE, (b"content-length", b"%d" % len(body))])
        await self.send(body)

    async def refuse(self, error: ServeError) -> None:
        """Answer with an error."""
        await self.refuse_as(error, error.status, error.body())

    async def refuse_as(self, error: ServeError, status: int, body: bytes) -> None:
        """Answer with an error as another protocol tells it."""
        headers = [JSON_TYPE, (b"content-length", b"%d" % len(body))]
        headers += [(name.encode(), value.encode()) for name, value in error.headers.items()]
        connection = self.connection
        unread = connection is not None and connection.is_receiving(self._scope)
        if unread or isinstance(error, Draining):
            headers.append((b"connection", b"close"))  # nothing more is read from this client
        await self.start(status, headers)
        await self.send(body)

    async def wait(self, done: asyncio.Future[Any]) -> None:
        """Wait for a job. If the client leaves first, withdraw the job and raise `ClientGone`."""
        timer = None
        if self.connection is None:
            timer = self.loop.call_later(_WATCH_AFTER_SECONDS, self.watch, done)
        else:
            self.watch(done)
        try:
            await done
        except asyncio.CancelledError:
            if self._gone:
                raise ClientGone from None
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self.unwatch()

    def unsent(self, hold: Hold) -> AbstractContextManager[object]:
        """The time in which a reply is made and sent: the block that it opens."""
        return hold

    @property
    def gone(self) -> bool:
        """Whether the client was seen to leave."""
        return self._gone

    def watch(self, done: asyncio.Future[Any]) -> None:
        """From now on, cancel `done` when the client leaves."""
        if self.connection is None:
            self._watcher = self.loop.create_task(self._see_leave(done))
        else:
            self.connection.watch(partial(self._withdraw, done))

    def unwatch(self) -> None:
        """Stop watching."""
        if self.connection is not None:
            self.connection.watch(None)
        elif self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    async def _see_leave(self, done: asyncio.Future[Any]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._withdraw(done)

    def _withdraw(self, done: asyncio.Future[Any]) -> None:
        """The client has left: nobody waits for `done`."""
        if not done.done():
            self._gone = True
            done.cancel()
