"""Probes: they need no key, and have no rate limit."""

from sruserve.server.http.call import HttpCall
from sruserve.server.http.request_head import JSON_TYPE
from sruserve.server.json_output import json_bytes
from sruserve.server.lifecycle import Lifecycle

_RETRY_SECONDS = {"draining": b"5", "loading": b"1"}


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
