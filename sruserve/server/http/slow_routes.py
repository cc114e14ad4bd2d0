"""The FastAPI application of the routes that need not be fast: models and documentation."""

from collections.abc import Awaitable, Callable, Iterable

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sruserve import __version__
from sruserve.server.errors import ServeError
from sruserve.server.http.call import HttpCall, Message, Receive, Send
from sruserve.server.http.observed import refuse
from sruserve.server.http.openapi_parts import Json
from sruserve.server.http.routes import Handler, Mounted


class _HandlerResponse(Response):
    """Adapts a handler to FastAPI's responses."""

    def __init__(self, handler: Handler) -> None:
        super().__init__()
        self._handler = handler

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        values = tuple(scope.get("path_params", {}).values())
        await self._handler(HttpCall(scope, receive, send, values))


def create_slow_routes(
    mounted: Iterable[Mounted],
    document: Callable[[], Json],
    explain: Callable[[HttpCall], ServeError],
) -> FastAPI:
    """Create the application.

    document: creates the OpenAPI document of the whole server.
    explain: returns the error of a request without a route.
    """
    app = FastAPI(
        title="sruserve",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # `docs.py` serves the page and the document
        redirect_slashes=False,
    )
    app.openapi = document  # type: ignore[method-assign]

    async def refuse_unknown(call: HttpCall) -> None:
        await refuse(call, explain(call))

    def absent(request: Request, error: Exception) -> Response:
        del request, error
        return _HandlerResponse(refuse_unknown)

    app.add_exception_handler(HTTPException, absent)
    for route, handler in mounted:
        page = _endpoint(handler)
        app.add_api_route(route.path, page, methods=[*route.methods], include_in_schema=False)
    return app


def _endpoint(handler: Handler) -> Callable[[], Awaitable[_HandlerResponse]]:
    async def answer() -> _HandlerResponse:
        return _HandlerResponse(handler)

    return answer
