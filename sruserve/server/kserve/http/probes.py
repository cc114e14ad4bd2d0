"""KServe's probes, which anybody may send, with or without a key."""

from collections.abc import Awaitable, Callable

from sruserve.server.errors import ServeError
from sruserve.server.http.call import HttpCall
from sruserve.server.json_output import json_bytes
from sruserve.server.kserve.errors import explain
from sruserve.server.kserve.inference import Inference

Probe = Callable[[Inference, HttpCall], Awaitable[None]]


async def live(inference: Inference, call: HttpCall) -> None:
    """Is the process alive?"""
    del inference
    await call.reply_as(200, json_bytes({"live": True}))


async def ready(inference: Inference, call: HttpCall) -> None:
    """Does it take work?"""
    takes_work = inference.ready()
    await call.reply_as(200 if takes_work else 503, json_bytes({"ready": takes_work}))


async def model_ready(inference: Inference, call: HttpCall) -> None:
    """Does a model take work?"""
    name, version = (*call.path_values, "")[:2]
    try:
        takes_work = inference.model_ready(name, version)
    except ServeError as error:
        problem = explain(error)
        await call.refuse_as(error, problem.status, json_bytes({"error": problem.message}))
        return
    body = json_bytes({"name": name, "ready": takes_work})
    await call.reply_as(200 if takes_work else 503, body)
