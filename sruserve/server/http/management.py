"""The routes of operators: models, metrics, and probes, which need no key."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from sruserve.server.errors import ModelNotFound, NoProcess
from sruserve.server.http import responses as replies
from sruserve.server.http.call import HttpCall
from sruserve.server.http.observed import answering_errors
from sruserve.server.http.request_head import JSON_TYPE
from sruserve.server.http.routes import ANY_TENANT, TEXT, Mounted, Reply, Route
from sruserve.server.json_output import json_bytes
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.metrics.page import MetricsPage
from sruserve.server.repository.served import Served
from sruserve.server.repository.served_model import ServedModel

Answer = Callable[[Lifecycle, HttpCall], Awaitable[None]]

_RETRY_SECONDS = {"draining": b"5", "loading": b"1"}  # of a probe


async def list_models(lifecycle: Lifecycle, call: HttpCall) -> None:
    """List the models."""
    lifecycle.tenants.authenticate(call.authorization).admit()
    models = [_describe(lifecycle, *each) for each in lifecycle.catalogue.listed()]
    await call.reply(json_bytes(replies.ModelList(data=models)))


async def describe_model(lifecycle: Lifecycle, call: HttpCall) -> None:
    """Describe a model."""
    lifecycle.tenants.authenticate(call.authorization).admit()
    (name,) = call.path_values
    await call.reply(json_bytes(_describe(lifecycle, name, lifecycle.catalogue[name])))


async def live(lifecycle: Lifecycle, call: HttpCall) -> None:
    """Check liveness.

    200 while the process answers requests.
    """
    del lifecycle
    await _answer(call, "ok")


async def ready(lifecycle: Lifecycle, call: HttpCall) -> None:
    """Check readiness.

    200 once all models are loaded and warm; 503 before, after SIGTERM, and if a model fails.
    """
    await _answer(call, _readiness(lifecycle))


async def read_metrics(metrics: MetricsPage, call: HttpCall) -> None:
    """Read Prometheus metrics.

    The metrics are at most a second old.
    """
    text, content_type = await metrics.read()
    await call.reply_as(200, text, [(b"content-type", content_type.encode())])


async def _answer(call: HttpCall, status: str) -> None:
    headers = [JSON_TYPE]
    if status in _RETRY_SECONDS:
        headers.append((b"retry-after", _RETRY_SECONDS[status]))
    await call.reply_as(200 if status == "ok" else 503, json_bytes({"status": status}), headers)


def _readiness(lifecycle: Lifecycle) -> str:
    if lifecycle.draining:
        return "draining"
    if not lifecycle.ready:
        return "loading"
    return "ok" if lifecycle.alive else "failed"


def _describe(lifecycle: Lifecycle, model_id: str, served: Served) -> replies.ModelInfo:
    model = served.model
    return replies.ModelInfo(
        id=model_id,
        created=lifecycle.started_at,
        version=served.version,
        task=served.task,
        description=model.config.description or "",
        digest=model.digest,
        dtype=model.dtype,
        streams=served.has_states,
        state_bytes=served.state_bytes,
        presets=list(served.presets),
        labels=list(served.labels),
        outputs=_outputs(served),
        vocab_size=served.vocab_size,
    )


def _outputs(served: Served) -> list[replies.OutputInfo]:
    """A regressor's values with their units."""
    regression = served.model.config.regression if isinstance(served, ServedModel) else None
    if regression is None:
        return []
    units = regression.units or ("",) * len(regression.names)
    pairs = zip(regression.names, units, strict=True)
    quantiles = list(regression.quantiles)
    return [replies.OutputInfo(name=name, unit=unit, quantiles=quantiles) for name, unit in pairs]


def _probe(path: str, handler: Answer, name: str, *other_replies: Reply) -> Route[Answer]:
    return Route("GET", path, handler, name, "operation", (Reply(replies.Status), *other_replies))


_NOT_READY = Reply(
    replies.Status,
    503,
    description="The server is not ready.",
    headers={"Retry-After": "Seconds after which it may be ready."},
)
_PAGES: tuple[Route[Answer], ...] = (
    Route(
        "GET", "/v1/models", list_models, "list_models", "models",
        (Reply(replies.ModelList),), ANY_TENANT,
    ),
    Route(
        "GET", "/v1/models/{model}", describe_model, "describe_model", "models",
        (Reply(replies.ModelInfo),), (*ANY_TENANT, ModelNotFound),
    ),
)  # fmt: skip
_PROBES: tuple[Route[Answer], ...] = (
    _probe("/livez", live, "live"),
    _probe("/readyz", ready, "readyz", _NOT_READY),
    _probe("/health", ready, "health", _NOT_READY),
)
METRICS = Route(
    "GET", "/metrics", read_metrics, "read_metrics", "operation",
    (Reply(media_type=TEXT),), (NoProcess,),
)  # fmt: skip
ROUTES: tuple[Route[Any], ...] = (*_PAGES, *_PROBES, METRICS)


def mount(lifecycle: Lifecycle, metrics: MetricsPage) -> list[Mounted]:
    """The handlers of probes and metrics, which must be fast also under load."""
    answer_metrics = answering_errors(partial(read_metrics, metrics))
    probes = [(probe, answering_errors(partial(probe.handler, lifecycle))) for probe in _PROBES]
    return [*probes, (METRICS, answer_metrics)]


def mount_slow(lifecycle: Lifecycle) -> list[Mounted]:
    """The handlers of the other routes."""
    return [
        (page, answering_errors(partial(page.handler, lifecycle), page.path)) for page in _PAGES
    ]
