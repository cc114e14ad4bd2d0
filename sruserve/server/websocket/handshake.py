"""The request that opens a WebSocket."""

from sruserve.server.budget import Hold
from sruserve.server.errors import Draining, ServeError
from sruserve.server.http.call import Message, Receive, RequestConnection, Send
from sruserve.server.http.error_mapping import error_body, status_of
from sruserve.server.http.request_head import Headers, describe, refusal_headers, request_id
from sruserve.server.observation.observation import Description
from sruserve.server.tasks.caller import Caller, ClientDisconnected


class Handshake(Caller):
    """A handshake, which is accepted, or refused as a request over HTTP is.

    place: in the budget of sockets; empty until the client is accepted.
    connection: None if the server counts no bytes of it.
    """

    __slots__ = (
        "_headers", "_receive", "_send", "_status", "accepted", "connection", "path", "place",
        "scope",
    )  # fmt: skip

    def __init__(self, scope: Message, receive: Receive, send: Send, place: Hold) -> None:
        self._headers: Headers = dict(reversed(scope["headers"]))
        credentials = self._headers.get(b"authorization")
        super().__init__(None if credentials is None else credentials.decode("latin-1"))
        self._receive, self._send = receive, send
        self.scope, self.place = scope, place
        self.path: str = scope["path"]
        self.connection: RequestConnection | None = scope.get("connection")
        self.accepted = False
        self._status: int | None = None

    def describe(self) -> Description:
        return describe("websocket", self.scope, self._headers, "GET", self.number, self._status)

    async def accept(self) -> None:
        """Open the socket."""
        await self._receive()  # the event "websocket.connect"
        await self._send_event({"type": "websocket.accept"})
        self.accepted = self.started = True
        self._status = 101

    async def refuse(self, error: ServeError) -> None:
        """Answer with an error instead of a socket."""
        status, body = status_of(type(error)), error_body(error)
        headers = refusal_headers(error, len(body))
        if isinstance(error, Draining):
            headers.append((b"connection", b"close"))
        headers.append((b"x-request-id", request_id(self._headers, self.number)))
        self.started, self._status = True, status
        start = {"type": "websocket.http.response.start", "status": status}
        await self._send_event({**start, "headers": headers})
        await self._send_event({"type": "websocket.http.response.body", "body": body})

    async def _send_event(self, event: Message) -> None:
        try:
            await self._send(event)
        except OSError:
            raise ClientDisconnected from None
