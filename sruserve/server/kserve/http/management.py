"""KServe v2 over HTTP without inference and probes: metadata, statistics, the repository."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from sruserve.server.auth import Tenant, Tenants
from sruserve.server.errors import ServeError, Unsupported
from sruserve.server.http.call import HttpCall
from sruserve.server.http.errors import UnsupportedMediaType
from sruserve.server.json_output import json_bytes
from sruserve.server.kserve.http.endpoint import KServeEndpoint
from sruserve.server.kserve.inference import Inference
from sruserve.server.metrics.metrics import UNKNOWN_MODEL
from sruserve.server.tasks.limits import InputLimits

_JSON, _BYTES = "application/json", "application/octet-stream"


class ControlBody(BaseModel):
    """The body of a request to the repository; usually empty."""

    model_config = ConfigDict(strict=True, extra="forbid")

    ready: bool = Field(False, description="For the index: list only models that are ready.")
    parameters: dict[str, Any] = Field(
        default_factory=dict, description="Parameters of Triton's clients; a load takes none."
    )


class _ControlEndpoint(KServeEndpoint):
    """Replies with short JSON, the same for all tenants."""

    path, schema = "/v2", ControlBody

    def __init__(self, tenants: Tenants) -> None:
        super().__init__(tenants, (UNKNOWN_MODEL,))


LookUp = Callable[..., object]
Change = Callable[..., Coroutine[Any, Any, Any]]


class LookUpEndpoint(_ControlEndpoint):
    """Replies with information. look_up: returns it for the values in the path."""

    def __init__(self, tenants: Tenants, inference: Inference, look_up: LookUp) -> None:
        super().__init__(tenants)
        self._inference, self._look_up = inference, look_up

    async def serve(self, call: HttpCall, tenant: Tenant) -> None:
        del tenant
        await call.reply(json_bytes(self._look_up(self._inference, *call.path_values)))


class ChangeEndpoint(_ControlEndpoint):
    """Changes or lists the repository. change: does so, with the body and the path's values."""

    def __init__(
        self, tenants: Tenants, inference: Inference, limits: InputLimits, change: Change
    ) -> None:
        super().__init__(tenants)
        self._inference, self._limits, self._change = inference, limits, change

    async def serve(self, call: HttpCall, tenant: Tenant) -> None:
        del tenant
        _check_type(call)
        body = ControlBody.model_validate_json(await call.json_body(self._limits) or b"{}")
        change = asyncio.ensure_future(self._change(self._inference, body, *call.path_values))
        await call.wait(change)  # if the client leaves first, a waiting change is cancelled
        await call.reply(json_bytes(change.result()))


async def index(inference: Inference, body: ControlBody) -> list[dict[str, Any]]:
    """List the models."""
    return inference.index(body.ready)


async def load(inference: Inference, body: ControlBody, name: str) -> dict[str, Any]:
    """Load a model."""
    await inference.load(name, body.parameters)
    return {}


async def unload(inference: Inference, body: ControlBody, name: str) -> dict[str, Any]:
    """Unload a model."""
    del body
    await inference.unload(name)
    return {}


class UnknownRouteEndpoint(_ControlEndpoint):
    """Refuses requests without a route. explain: returns the error."""

    def __init__(self, tenants: Tenants, explain: Callable[[HttpCall], ServeError]) -> None:
        super().__init__(tenants)
        self._explain = explain

    async def serve(self, call: HttpCall, tenant: Tenant) -> None:
        del tenant
        match call.path.split("/")[2:]:
            case ["logging"] | ["trace", "setting"] | ["models", _, "trace", "setting"]:
                raise Unsupported("requests cannot change log and trace settings; ask the operator")
            case ["systemsharedmemory" | "cudasharedmemory", *_]:
                raise Unsupported("shared memory is not supported: send tensors in the request")
        raise self._explain(call)


def _check_type(call: HttpCall) -> None:
    """Refuse the content types that forms of any web page can send; a missing type is JSON."""
    content_type = (call.header(b"content-type") or _JSON).partition(";")[0].strip().lower()
    if content_type not in (_JSON, _BYTES):
        raise UnsupportedMediaType(
            f"the repository takes JSON: send 'content-type: {_JSON}', or no content type"
        )
