"""The reply to a step: it is stored, and its events go on to the client as they come."""

from sruserve.server.http.call import HttpCall


class StoredReply:
    """Keeps the whole reply, for a client that may leave before it is complete.

    Events go on to the client as they come, all but the last, which is the step's outcome; any
    other reply is only kept.

    started: the reply has begun. heard: the client is still there. last: the last event.
    """

    def __init__(self, call: HttpCall) -> None:
        self._call = call
        self._parts: list[bytes] = []
        self._headers: list[tuple[bytes, bytes]] = []
        self.started, self.heard, self.last = False, True, b""

    @property
    def body(self) -> bytes:
        """The whole reply."""
        return b"".join(self._parts)

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Remember how the reply begins."""
        del status  # an error is raised, and everything else is a 200
        self.started, self._headers = True, headers

    async def send(self, body: bytes, *, more: bool = False) -> None:
        """Keep a part of the reply, and pass it on unless it is the last."""
        self._parts.append(body)
        if not more:
            self.last = body
        elif self.heard:
            if not self._call.started:
                await self._call.start(200, self._headers)
            await self._call.send(body, more=True)

    async def reply(self, body: bytes) -> None:
        """Keep a reply that has one part."""
        self.started = True
        self._parts.append(body)
