"""The route of the Responses API."""

from collections.abc import Callable

from sruserve.server.auth import Tenants
from sruserve.server.http.responses.error import ErrorReply
from sruserve.server.http.responses_api.endpoint import ResponsesEndpoint
from sruserve.server.http.responses_api.reply import ResponseEvent, ResponsesReply
from sruserve.server.http.responses_api.request import ResponsesRequest
from sruserve.server.http.routes import ANY_TENANT, EVENTS, GRAMMAR, TASK, Reply, Route
from sruserve.server.tasks.complete import CompleteTask

Create = Callable[[str, CompleteTask, Tenants, float], ResponsesEndpoint]


def responses(
    path: str, task: CompleteTask, tenants: Tenants, ping_seconds: float
) -> ResponsesEndpoint:
    """Create a response.

    Continue a text in the shape of OpenAI's Responses API; with `stream`, send its events.

    The id of a response is the state after its text, so any replica continues it with
    `previous_response_id`, and the server keeps nothing.
    """
    return ResponsesEndpoint(path, task, tenants, ping_seconds)


ROUTES: tuple[Route[Create], ...] = (
    Route(
        "POST", "/v1/responses", responses, "responses", "inference",
        (
            Reply(ResponsesReply),
            Reply(
                ResponseEvent | ErrorReply,
                media_type=EVENTS,
                description="Events with JSON data; the last one is response.completed or "
                "response.failed.",
            ),
        ),
        (*ANY_TENANT, *TASK, *GRAMMAR), ResponsesRequest,
    ),
)  # fmt: skip


def mount(
    task: CompleteTask, tenants: Tenants, ping_seconds: float
) -> list[tuple[Route[Create], ResponsesEndpoint]]:
    """Create the endpoint."""
    return [(route, route.handler(route.path, task, tenants, ping_seconds)) for route in ROUTES]
