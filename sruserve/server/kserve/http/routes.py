"""KServe v2 over HTTP: an ASGI application for `/v2`."""

from sruserve.server.auth import Tenants
from sruserve.server.errors import ServeError
from sruserve.server.http.call import HttpCall, Message, Receive, Send
from sruserve.server.json_output import json_bytes
from sruserve.server.kserve.errors import explain
from sruserve.server.kserve.http.infer import InferEndpoint
from sruserve.server.kserve.http.management import ControlEndpoint
from sruserve.server.kserve.inference import Inference
from sruserve.server.tasks.limits import InputLimits

PREFIX = "/v2"


class KServe:
    """Answers probes at once and for everybody, and hands all else to the endpoints."""

    def __init__(self, tenants: Tenants, inference: Inference, limits: InputLimits) -> None:
        self._inference = inference
        self._infer = InferEndpoint(tenants, inference, limits)
        self._control = ControlEndpoint(tenants, inference, limits)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        call = HttpCall(scope, receive, send)
        match call.method, *call.path.removeprefix(PREFIX).split("/")[1:]:
            case "GET", "health", "live":
                await _tell(call, 200, {"live": True})
            case "GET", "health", "ready":
                ready = self._inference.ready()
                await _tell(call, 200 if ready else 503, {"ready": ready})
            case "GET", "models", name, "ready":
                await self._model_ready(call, name, "")
            case "GET", "models", name, "versions", version, "ready":
                await self._model_ready(call, name, version)
            case ("POST", "models", _, "infer") | ("POST", "models", _, "versions", _, "infer"):
                await self._infer(call)
            case _:
                await self._control(call)

    async def _model_ready(self, call: HttpCall, name: str, version: str) -> None:
        try:
            ready = self._inference.model_ready(name, version)
        except ServeError as error:
            told = explain(error)
            await _tell(call, told.status, {"error": told.message})
            return
        await _tell(call, 200 if ready else 503, {"name": name, "ready": ready})


async def _tell(call: HttpCall, status: int, value: object) -> None:
    body = json_bytes(value)
    await call.start(
        status,
        [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))],
    )
    await call.send(body)
