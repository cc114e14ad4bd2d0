"""Which endpoint answers which path below `/v1/streams`."""

from collections.abc import Awaitable, Callable

from sruserve.server.http.call import HttpCall, Message, Receive, Send
from sruserve.server.http.streams.endpoints import (
    Create,
    Delete,
    Describe,
    ForkStream,
    RewindStream,
    State,
    StreamEndpoint,
)
from sruserve.server.http.streams.steps import Steps

PREFIX = "/v1/streams"
_ENDPOINTS: dict[tuple[str, int, str], type[StreamEndpoint]] = {
    ("POST", 0, ""): Create,
    ("GET", 1, ""): Describe,
    ("DELETE", 1, ""): Delete,
    ("POST", 2, "steps"): Steps,
    ("POST", 2, "fork"): ForkStream,
    ("POST", 2, "rewind"): RewindStream,
    ("GET", 2, "state"): State,
}


class StreamMount:
    """Serves `/v1/streams`.

    make: an endpoint of a kind.
    others: answers what is none of its paths and methods.
    """

    def __init__(
        self,
        make: Callable[[type[StreamEndpoint]], StreamEndpoint],
        others: Callable[[Message, Receive, Send], Awaitable[None]],
    ) -> None:
        self._others = others
        self._endpoints = {where: make(endpoint) for where, endpoint in _ENDPOINTS.items()}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        below = scope["path"].removeprefix(PREFIX).split("/")[1:]
        action = below[1] if len(below) > 1 else ""
        endpoint = self._endpoints.get((scope["method"], len(below), action))
        if endpoint is None:
            await self._others(scope, receive, send)
        else:
            await endpoint(HttpCall(scope, receive, send))
