"""KServe's probes, which need no key."""

from collections.abc import Awaitable, Callable

from sruserve.server.errors import ServeError
from sruserve.server.http.call import HttpCall
from sruserve.server.json_output import json_bytes
from sruserve.server.kserve.errors import explain
from sruserve.server.kserve.inference import Inference

Probe = Callable[[Inference, HttpCall], Awaitable[None]]


async def live(inference: Inference, call: HttpCall) -> None:
    """Check whether the server is alive."""
    del inference
    await call.reply_as(200, json_bytes({"live": True}))


async def ready(inference: Inference, call: HttpCall) -> None:
    """Check whether the server is ready."""
    is_ready = inference.ready()
    await call.reply_as(200 if is_ready else 503, json_bytes({"ready": is_ready}))


async def model_ready(inference: Inference, call: HttpCall) -> None:
    """Check whether a model is ready."""
    name, version = (*call.path_values, "")[:2]
    try:
        is_ready = inference.model_ready(name, version)
    except ServeError as error:
        problem = explain(error)
        await call.refuse_as(error, problem.status, json_bytes({"error": problem.message}))
        return
    body = json_bytes({"name": name, "ready": is_ready})
    await call.reply_as(200 if is_ready else 503, body)
