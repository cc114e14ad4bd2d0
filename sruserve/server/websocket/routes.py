"""The route of WebSockets, for requests that open none."""

from collections.abc import Awaitable, Callable
from functools import partial

from sruserve.server.auth import Tenants
from sruserve.server.http.call import HttpCall
from sruserve.server.http.errors import UpgradeRequired
from sruserve.server.http.observed import answering_errors
from sruserve.server.http.routes import ANY_TENANT, Mounted, Reply, Route
from sruserve.server.websocket.endpoint import PATH


async def open_socket(tenants: Tenants, call: HttpCall) -> None:
    """Open a WebSocket.

    Its frames continue one stream each time: docs/streams.md describes them.
    """
    tenants.authenticate(call.authorization).admit()
    raise UpgradeRequired(
        f"{PATH} is a WebSocket: connect to it with a WebSocket client (ws:// or wss://), or "
        "send single requests to the other routes, which /docs lists"
    )


ROUTES: tuple[Route[Callable[[Tenants, HttpCall], Awaitable[None]]], ...] = (
    Route(
        "GET", PATH, open_socket, "open_socket", "streams",
        (Reply(status=101, media_type="", description="The connection is a WebSocket."),),
        (*ANY_TENANT, UpgradeRequired),
    ),
)  # fmt: skip


def mount(tenants: Tenants) -> list[Mounted]:
    """What answers all routes."""
    return [
        (route, answering_errors(partial(route.handler, tenants), route.path)) for route in ROUTES
    ]
