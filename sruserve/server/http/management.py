"""The routes that need not be fast: models, probes, metrics and the documentation."""

import asyncio
from typing import Any

import swagger_ui_bundle
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from sruserve import __version__
from sruserve.server.errors import (
    InvalidRequest,
    MethodNotAllowed,
    RouteNotFound,
    ServeError,
    UpgradeRequired,
)
from sruserve.server.http import openapi as document
from sruserve.server.http import responses as replies
from sruserve.server.http.page import METRICS, Files, Page
from sruserve.server.http.probes import HEALTH, LIVE, READY
from sruserve.server.http.streams import openapi as streams
from sruserve.server.json_output import json_bytes
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.offload import run_in_thread
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.error_mapping import explain_validation

_REFUSED: dict[int | str, dict[str, Any]] = {
    401: {"model": replies.ErrorReply, "description": "The API key is missing or unknown"},
    404: {"model": replies.ErrorReply, "description": "No such model"},
    429: {"model": replies.ErrorReply, "description": "The API key has used up its requests"},
}
_ASSETS = "/docs/assets"
_SCRIPT, _STYLE, _ICON = "swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"
_DESCRIPTION = """Inference for trained recurrent models. All that a model remembers of a stream is
a few kilobytes: ask for it with `return_state`, send it back as `state`, to any replica.

Every error is `{"error": {"message", "type", "param", "code"}}`; `code` never changes."""


def create_pages(lifecycle: Lifecycle, socket: str, *documented: APIRouter) -> FastAPI:
    """The FastAPI application behind the hot routes.

    socket: the path of WebSockets. documented: what other protocols add to the OpenAPI document.
    """
    app = FastAPI(
        title="sruserve",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # `_add_docs` has it, made once
        redirect_slashes=False,
    )
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _validation_problem)
    app.add_exception_handler(ServeError, _serve_problem)
    app.add_exception_handler(Exception, _unforeseen_problem)
    app.include_router(document.router)
    app.include_router(streams.router)
    _add_models(app, lifecycle, socket)
    _add_operation(app)
    _add_docs(app)
    for router in documented:
        app.include_router(router)
    _describe_keys(app)
    return app


def _add_models(app: FastAPI, lifecycle: Lifecycle, socket: str) -> None:
    def describe(served: ServedModel) -> replies.ModelInfo:
        model = served.model
        return replies.ModelInfo(
            id=served.name,
            created=lifecycle.started_at,
            version=served.version,
            task=model.config.task,
            digest=model.digest,
            dtype=model.dtype,
            streams=model.network.supports_streaming,
            state_bytes=model.network.layout.nbytes,
            presets=list(served.presets),
            labels=list(model.labels),
            vocab_size=model.config.vocab_size,
        )

    async def admit(request: Request) -> None:
        lifecycle.tenants.authenticate(request.headers.get("authorization")).admit()

    known = APIRouter(dependencies=[Depends(admit)], tags=["models"], responses=_REFUSED)

    @known.get("/v1/models", summary="List the models")
    async def list_models() -> replies.ModelList:
        return replies.ModelList(data=[describe(each) for each in lifecycle.catalogue.values()])

    @known.get("/v1/models/{model}", summary="Describe a model")
    async def describe_model(model: str) -> replies.ModelInfo:
        return describe(lifecycle.catalogue[model])

    @known.get(socket, include_in_schema=False)
    async def refuse_plain() -> None:
        raise UpgradeRequired(
            f"{socket} is a WebSocket: connect to it with a WebSocket client (ws:// or wss://), or "
            "send single requests to the other routes, which /docs lists"
        )

    app.include_router(known)

    @app.get("/", include_in_schema=False)
    async def index() -> dict[str, str]:
        return {
            "name": "sruserve",
            "version": __version__,
            "documentation": "/docs",
            "models": "/v1/models",
            "metrics": "/metrics",
        }


def _add_operation(app: FastAPI) -> None:
    """Document what the application answers itself: no GET of these paths gets here."""

    @app.get(LIVE, tags=["operation"], summary="Is the process alive?")
    async def live() -> dict[str, str]:
        raise NotImplementedError

    async def ready() -> JSONResponse:
        """200 when models are loaded and warm; 503 before, from SIGTERM on, and if one fails."""
        raise NotImplementedError

    later: dict[int | str, dict[str, Any]] = {503: {"description": "It cannot, or not yet"}}
    for path in (READY, HEALTH):
        app.get(
            path, responses=later, tags=["operation"], summary="Can it take work?", name=path[1:]
        )(ready)

    @app.get(
        METRICS,
        response_class=PlainTextResponse,
        tags=["operation"],
        summary="Prometheus metrics",
    )
    async def read_metrics() -> str:
        """The text is at most a second old."""
        raise NotImplementedError


def _describe_keys(app: FastAPI) -> None:
    """Say that there may be API keys, so that the page can send one along."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        described = describe()
        described["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        described["security"] = [{}, {"key": []}]
        return described

    app.openapi = openapi  # type: ignore[method-assign]


def _add_docs(app: FastAPI) -> None:
    """Swagger's page, from files on this machine only."""
    types = {
        _SCRIPT: "text/javascript; charset=utf-8",
        _STYLE: "text/css; charset=utf-8",
        _ICON: "image/png",
    }
    app.add_route(f"{_ASSETS}/{{name}}", Files(swagger_ui_bundle.swagger_ui_path, types).answer)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="/docs/openapi.json",
            title="sruserve",
            swagger_js_url=f"{_ASSETS}/{_SCRIPT}",
            swagger_css_url=f"{_ASSETS}/{_STYLE}",
            swagger_favicon_url=f"{_ASSETS}/{_ICON}",
            swagger_ui_parameters={"validatorUrl": None},  # by default it is a public server
        )

    making: list[asyncio.Task[tuple[bytes, bytes]]] = []

    def make() -> tuple[bytes, bytes]:
        document = app.openapi()
        # the bundled page refuses documents that say 3.1, but renders what is in this one
        return json_bytes(document), json_bytes(document | {"openapi": "3.0.3"})

    async def make_away() -> tuple[bytes, bytes]:
        try:
            return await run_in_thread("openapi", make)
        except BaseException:
            making.clear()  # the next request tries again
            raise

    async def made() -> tuple[bytes, bytes]:
        """The documents, made once: that takes a second, for which nobody else waits."""
        if not making:
            making.append(asyncio.create_task(make_away()))
        return await asyncio.shield(making[0])

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return Page((await made())[0], media_type="application/json")

    @app.get("/docs/openapi.json", include_in_schema=False)
    async def openapi_for_page() -> Response:
        return Page((await made())[1], media_type="application/json")


def _reply(problem: ServeError) -> Response:
    return Response(
        problem.body(), problem.status, dict(problem.headers), media_type="application/json"
    )


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return _reply(RouteNotFound(f"there is nothing at {where}; /docs lists all routes"))
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        reply = _reply(MethodNotAllowed(f"{where} is not allowed; use {allowed}"))
        reply.headers["allow"] = allowed
        return reply
    problem = InvalidRequest(str(error.detail))
    return Response(problem.body(), error.status_code, media_type="application/json")


async def _validation_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _reply(explain_validation(error.errors()))


async def _serve_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, ServeError)
    return _reply(error)


async def _unforeseen_problem(_: Request, __: Exception) -> Response:
    # starlette raises the exception again after this reply, so that it is logged
    return _reply(ServeError("the server failed on this request; its log says why"))
