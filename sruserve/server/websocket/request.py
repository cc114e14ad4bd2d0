"""One frame of a WebSocket, as a caller of a task."""

from typing import Any, Protocol

from pydantic_core import from_json

from sruserve.server.errors import (
    Draining,
    InvalidRequest,
    MalformedBody,
    ServeError,
)
from sruserve.server.http.call import Send
from sruserve.server.http.error_mapping import error_fields
from sruserve.server.http.json_turns import SHORT_JSON_BYTES, TurnTaker, turn_to_parse
from sruserve.server.json_output import json_bytes, long_json
from sruserve.server.observation.observation import Description
from sruserve.server.observation.traceparent import TraceParent
from sruserve.server.offload import offload
from sruserve.server.tasks.caller import Caller, ClientDisconnected
from sruserve.server.websocket.session import Session

MAX_ID = 100  # characters of a frame's `id`


class FrameConnection(TurnTaker, Protocol):
    """A connection that counts the bytes of frames until they are read."""

    def has_read(self, size: int) -> None: ...


class WebSocketRequest(Caller):
    """One frame of a client; its replies repeat its `id`.

    stream: the socket's session, once a frame has begun it.
    last: the client closes the socket with this frame.
    interrupted: the server stops and has not answered it.
    cost: bytes of the frame.
    """

    __slots__ = (
        "_connection", "_data", "_id", "_parent", "_send", "cost", "interrupted", "last", "stream",
    )  # fmt: skip

    def __init__(
        self,
        connection: FrameConnection | None,
        send: Send,
        authorization: str | None,
        data: bytes,
        stream: Session | None,
        parent: TraceParent | None = None,
    ) -> None:
        super().__init__(authorization)
        self._parent = parent
        self._connection, self._send = connection, send
        self.stream, self.last, self.interrupted = stream, False, False
        self._data, self.cost = data, len(data)
        self._id: dict[str, Any] = {}

    def describe(self) -> Description:
        return Description("websocket", self.number, parent=self._parent)

    async def turn_to_parse(self) -> None:
        """Return when the frame may be parsed; raises `InputTooLong` if its JSON is too much."""
        if self.cost > SHORT_JSON_BYTES:
            await turn_to_parse(self._data, self._connection, self)

    def fields(self) -> dict[str, Any]:
        """The fields of the frame without its id."""
        try:
            content = from_json(self._data)
        except ValueError as error:
            raise MalformedBody(f"the frame is not valid JSON: {error}") from None
        if not isinstance(content, dict):
            raise InvalidRequest("a frame must be a JSON object")
        frame_id = content.pop("id", None)
        if frame_id is not None:
            if type(frame_id) not in (str, int) or len(str(frame_id)) > MAX_ID:
                raise InvalidRequest(
                    f"'id' must be a text or an integer of at most {MAX_ID} characters",
                    param="id",
                )
            self._id = {"id": frame_id}
        return content

    def drop_data(self) -> None:
        """Drop the frame's bytes, which have been read or will not be."""
        data, self._data = self._data, b""
        if data and self._connection is not None:
            self._connection.has_read(len(data))

    async def send(self, fields: dict[str, Any], *, large: bool = False) -> None:
        """Send a reply. large: encoding it would block the event loop."""
        text = await offload(large, _text, {**self._id, **fields}, large)
        try:
            await self._send({"type": "websocket.send", "text": text})
        except OSError:
            raise ClientDisconnected from None

    async def refuse(self, error: ServeError) -> None:
        """Send an error, unless the server stops: the socket's last frame has that one."""
        if isinstance(error, Draining):
            self.interrupted = True
            return
        fields: dict[str, Any] = {"error": error_fields(error)}
        if error.retry_after_seconds is not None:
            fields["retry_after"] = error.retry_after_seconds
        await self.send(fields)


def _text(fields: dict[str, Any], large: bool) -> str:
    return (long_json if large else json_bytes)(fields).decode()
