"""The routes of operators: metrics, and probes, which need no key."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, Field

from sruserve.server.errors import NoProcess
from sruserve.server.http.call import HttpCall
from sruserve.server.http.observed import answering_errors
from sruserve.server.http.request_head import JSON_TYPE
from sruserve.server.http.routes import TEXT, Mounted, Reply, Route
from sruserve.server.json_output import json_bytes
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.metrics.page import MetricsPage

Answer = Callable[[Lifecycle, HttpCall], Awaitable[None]]

_RETRY_SECONDS = {"draining": b"5", "loading": b"1"}  # of a probe


class Status(BaseModel):
    """The reply to a probe."""

    status: Literal["ok", "draining", "loading", "failed"] = Field(
        description="`ok`, or why the server is not ready."
    )


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


def _probe(path: str, handler: Answer, name: str, *other_replies: Reply) -> Route[Answer]:
    return Route("GET", path, handler, name, "operation", (Reply(Status), *other_replies))


_NOT_READY = Reply(
    Status,
    503,
    description="The server is not ready.",
    headers={"Retry-After": "Seconds after which it may be ready."},
)
_PROBES: tuple[Route[Answer], ...] = (
    _probe("/livez", live, "live"),
    _probe("/readyz", ready, "readyz", _NOT_READY),
    _probe("/health", ready, "health", _NOT_READY),
)
METRICS = Route(
    "GET", "/metrics", read_metrics, "read_metrics", "operation",
    (Reply(media_type=TEXT),), (NoProcess,),
)  # fmt: skip
ROUTES: tuple[Route[Any], ...] = (*_PROBES, METRICS)


def mount(lifecycle: Lifecycle, metrics: MetricsPage) -> list[Mounted]:
    """The handlers of probes and metrics, which must be fast also under load."""
    answer_metrics = answering_errors(partial(read_metrics, metrics))
    probes = [(probe, answering_errors(partial(probe.handler, lifecycle))) for probe in _PROBES]
    return [*probes, (METRICS, answer_metrics)]
