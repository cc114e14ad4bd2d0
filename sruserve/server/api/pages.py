"""The routes that need not be fast: models, probes, metrics and the documentation."""

import logging
from typing import Any

import swagger_ui_bundle
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from sruserve import __version__
from sruserve.server import metrics
from sruserve.server.api import replies, requests
from sruserve.server.api.completion_request import CompletionRequest
from sruserve.server.api.frames import PATH as SOCKET
from sruserve.server.api.kserve import document as kserve
from sruserve.server.api.predict import PredictRequest
from sruserve.server.api.problems import explain_validation
from sruserve.server.api.served import Served
from sruserve.server.api.streams.document import describe_streams
from sruserve.server.errors import (
    InvalidRequest,
    MethodNotAllowed,
    RouteNotFound,
    ServeError,
    UpgradeRequired,
)
from sruserve.server.lifecycle import Lifecycle

log = logging.getLogger("sruserve.api")

_REFUSED: dict[int | str, dict[str, Any]] = {
    401: {"model": replies.ErrorReply, "description": "The API key is missing or unknown"},
    404: {"model": replies.ErrorReply, "description": "No such model"},
    429: {"model": replies.ErrorReply, "description": "The API key has used up its requests"},
}
_ASSETS = "/docs/assets"
_DESCRIPTION = """Inference for trained recurrent models. All that a model remembers of a stream is
a few kilobytes: ask for it with `return_state`, send it back as `state`, to any replica.

Every error is `{"error": {"message", "type", "param", "code"}}`; `code` never changes."""


def create_pages(lifecycle: Lifecycle) -> FastAPI:
    """The FastAPI application behind the hot routes."""
    app = FastAPI(
        title="sruserve",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
    )
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _validation_problem)
    app.add_exception_handler(ServeError, _serve_problem)
    app.add_exception_handler(Exception, _unforeseen_problem)
    _describe_hot_routes(app)
    _describe_predict(app)
    _add_models(app, lifecycle)
    _add_probes(app, lifecycle)
    _add_docs(app)
    app.include_router(kserve.router)
    _describe_keys(app)
    return app


def _describe_hot_routes(app: FastAPI) -> None:
    """Put the hot routes into the document. POST never gets here; other methods do, and get 405."""
    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": replies.ErrorReply, "description": what}
        for status, what in (
            (400, "The body is not JSON"),
            (401, "The API key is missing or unknown"),
            (403, "The state belongs to another tenant"),
            (404, "No such model"),
            (410, "The state has expired"),
            (413, "The body is too long"),
            (422, "The request cannot be served as it is"),
            (429, "The queue is full: retry after the time in `Retry-After`"),
            (500, "The server failed on this request"),
            (503, "The server is stopping: retry elsewhere"),
            (504, "The request waited for too long"),
        )
    }

    @app.post("/v1/classify", responses=errors, tags=["inference"], summary="Classify texts")
    async def classify(body: requests.ClassifyRequest) -> replies.ClassifyReply:
        """Label texts or features, or the next chunk of a stream, or pairs of texts."""
        raise NotImplementedError

    @app.post("/v1/tag", responses=errors, tags=["inference"], summary="Label every step")
    async def tag(body: requests.TagRequest) -> replies.TagReply:
        """Label each token of texts, or each step of ids or features, and merge labels to spans.

        A span that goes on from the chunk before is `continued`.
        """
        raise NotImplementedError

    @app.post("/v1/encode", responses=errors, tags=["inference"], summary="Compute outputs")
    async def encode(body: requests.EncodeRequest) -> replies.EncodeReply:
        """The outputs of a network without a head, for each step."""
        raise NotImplementedError

    @app.post("/v1/score", responses=errors, tags=["inference"], summary="Score texts")
    async def score(body: requests.ScoreRequest) -> replies.ScoreReply:
        """Log-likelihood and bits per character of texts under a language model."""
        raise NotImplementedError

    events: dict[str, Any] = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}

    @app.post(
        "/v1/completions",
        responses={**errors, 200: events},
        tags=["inference"],
        summary="Complete prompts",
    )
    async def completions(body: CompletionRequest) -> replies.CompletionReply:
        """Generate text in OpenAI's shape; with `stream`, as server-sent events of the same shape.

        A stream's `state` is on the chunk that carries `finish_reason`.
        """
        raise NotImplementedError

    describe_streams(app, errors)


def _describe_predict(app: FastAPI) -> None:
    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": replies.PredictError}
        for status in (400, 401, 404, 413, 422, 429, 500, 503, 504)
    }

    @app.post("/predict", responses=errors, tags=["inference"], summary="Classify texts as TEI")
    async def predict(
        body: PredictRequest, model: str | None = None
    ) -> list[replies.Prediction] | list[list[replies.Prediction]]:
        """The labels of a text, the likeliest first, in text-embeddings-inference's shape.

        A batch gets a list of them for each of its texts.
        """
        raise NotImplementedError


def _add_models(app: FastAPI, lifecycle: Lifecycle) -> None:
    def describe(served: Served) -> replies.ServedModel:
        model = served.model
        return replies.ServedModel(
            id=served.name,
            created=lifecycle.started_at,
            version=served.version,
            task=model.config.task,
            digest=model.digest,
            dtype=model.dtype,
            streams=model.network.streams,
            state_bytes=model.network.layout.nbytes,
            presets=list(served.presets),
            labels=list(model.labels),
            vocab_size=model.config.vocab_size,
        )

    async def admit(request: Request) -> None:
        lifecycle.tenants.of(request.headers.get("authorization")).admit()

    known = APIRouter(dependencies=[Depends(admit)], tags=["models"], responses=_REFUSED)

    @known.get("/v1/models", summary="List the models")
    async def list_models() -> replies.ModelList:
        return replies.ModelList(data=[describe(each) for each in lifecycle.catalogue.values()])

    @known.get("/v1/models/{model}", summary="Describe a model")
    async def describe_model(model: str) -> replies.ServedModel:
        return describe(lifecycle.catalogue[model])

    @known.get(SOCKET, include_in_schema=False)
    async def refuse_plain() -> None:
        raise UpgradeRequired(
            f"{SOCKET} is a WebSocket: connect to it with a WebSocket client (ws:// or wss://), or "
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


def _add_probes(app: FastAPI, lifecycle: Lifecycle) -> None:
    @app.get("/livez", tags=["operation"], summary="Is the process alive?")
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    async def ready() -> JSONResponse:
        """200 when models are loaded and warm; 503 before, from SIGTERM on, and if one fails."""
        if lifecycle.draining:
            return JSONResponse({"status": "draining"}, 503, {"retry-after": "5"})
        if not lifecycle.ready:
            return JSONResponse({"status": "loading"}, 503, {"retry-after": "1"})
        if not lifecycle.alive:
            return JSONResponse({"status": "failed"}, 503)
        return JSONResponse({"status": "ok"})

    later: dict[int | str, dict[str, Any]] = {503: {"description": "It cannot, or not yet"}}
    for path in ("/readyz", "/health"):
        app.get(
            path, responses=later, tags=["operation"], summary="Can it take work?", name=path[1:]
        )(ready)

    @app.get(
        "/metrics",
        response_class=PlainTextResponse,
        tags=["operation"],
        summary="Prometheus metrics",
    )
    def read_metrics() -> Response:  # in a worker thread: with --workers it reads files
        text, content_type = metrics.render()
        return Response(text, headers={"content-type": content_type})


def _describe_keys(app: FastAPI) -> None:
    """Say that there may be API keys, so that the page can send one along."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        document = describe()
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{}, {"key": []}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _add_docs(app: FastAPI) -> None:
    """Swagger's page, from files on this machine only."""
    app.mount(_ASSETS, StaticFiles(directory=swagger_ui_bundle.swagger_ui_path))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="/docs/openapi.json",
            title="sruserve",
            swagger_js_url=f"{_ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{_ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{_ASSETS}/favicon-32x32.png",
            swagger_ui_parameters={"validatorUrl": None},  # by default it is a public server
        )

    @app.get("/docs/openapi.json", include_in_schema=False)
    async def openapi_for_page() -> dict[str, Any]:
        # the bundled page refuses documents that say 3.1, but renders what is in this one
        return {**app.openapi(), "openapi": "3.0.3"}


def _reply(problem: ServeError) -> Response:
    return Response(
        problem.body(), problem.status, dict(problem.headers), media_type="application/json"
    )


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return _reply(RouteNotFound(f"there is nothing at {where}; /docs lists what there is"))
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        reply = _reply(MethodNotAllowed(f"{where} is not possible; use {allowed}"))
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
