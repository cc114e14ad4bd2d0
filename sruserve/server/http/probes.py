"""Answers to the probes, which anybody may send at any rate."""

from sruserve.server.http.call import JSON_TYPE, Send
from sruserve.server.json_output import json_bytes
from sruserve.server.lifecycle import Lifecycle

LIVE, READY, HEALTH = PATHS = "/livez", "/readyz", "/health"

_RETRY_SECONDS = {"draining": b"5", "loading": b"1"}


async def answer_probe(path: str, lifecycle: Lifecycle, send: Send) -> None:
    """Reply to a GET of one of `PATHS`: 200, or 503 while the server cannot take work."""
    said = "ok" if path == LIVE else _readiness(lifecycle)
    body = json_bytes({"status": said})
    headers = [JSON_TYPE, (b"content-length", b"%d" % len(body))]
    if said in _RETRY_SECONDS:
        headers.append((b"retry-after", _RETRY_SECONDS[said]))
    status = 200 if said == "ok" else 503
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _readiness(lifecycle: Lifecycle) -> str:
    if lifecycle.draining:
        return "draining"
    if not lifecycle.ready:
        return "loading"
    return "ok" if lifecycle.alive else "failed"
