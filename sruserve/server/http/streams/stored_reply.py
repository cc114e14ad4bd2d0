"""The reply to a step: it is collected for the store, and its events are sent at once."""

from sruserve.server.http.call import HttpCall


class StoredReply:
    """Collects the whole reply, because the client may leave before it is complete.

    All events but the last, which is the step's outcome, are sent to the client at once. Any other
    reply is only collected.

    started: the reply has begun. client_connected: the client has not left. last: the last event.
    """

    def __init__(self, call: HttpCall) -> None:
        self._call = call
        self._parts: list[bytes] = []
        self._headers: list[tuple[bytes, bytes]] = []
        self.started, self.client_connected, self.last = False, True, b""

    @property
    def body(self) -> bytes:
        """The whole reply."""
        return b"".join(self._parts)

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Keep the headers for the first event."""
        del status  # always 200, because errors are raised
        self.started, self._headers = True, headers

    async def send(self, body: bytes, *, more: bool = False) -> None:
        """Collect a part of the reply, and send it unless it is the last."""
        self._parts.append(body)
        if not more:
            self.last = body
        elif self.client_connected:
            if not self._call.started:
                await self._call.start(200, self._headers)
            await self._call.send(body, more=True)

    async def reply(self, body: bytes) -> None:
        """Collect a reply with one part."""
        self.started = True
        self._parts.append(body)
