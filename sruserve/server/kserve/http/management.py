"""All of KServe v2 over HTTP but inference and probes: metadata, statistics, the repository."""

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field

from sruserve.server.auth import Tenant, Tenants
from sruserve.server.errors import (
    MethodNotAllowed,
    RouteNotFound,
    Unsupported,
    UnsupportedMediaType,
)
from sruserve.server.http.call import HttpCall
from sruserve.server.json_output import json_bytes
from sruserve.server.kserve.http.endpoint import KServeEndpoint
from sruserve.server.kserve.inference import Inference
from sruserve.server.metrics.metrics import UNKNOWN_MODEL
from sruserve.server.tasks.limits import InputLimits

_JSON, _BYTES = "application/json", "application/octet-stream"


class ControlBody(BaseModel):
    """What a call of the repository may say; mostly nothing."""

    model_config = ConfigDict(strict=True, extra="forbid")

    ready: bool = False
    parameters: dict[str, Any] = Field(default_factory=dict)


class ControlEndpoint(KServeEndpoint):
    """Whatever is answered with a little JSON."""

    path, schema = "/v2", ControlBody

    def __init__(self, tenants: Tenants, inference: Inference, limits: InputLimits) -> None:
        super().__init__(tenants, (UNKNOWN_MODEL,))
        self._inference, self._limits = inference, limits

    async def serve(self, call: HttpCall, tenant: Tenant) -> None:
        del tenant  # all of them see the same models
        parts = tuple(call.path.split("/")[2:])
        answer = self._look_up(parts) if call.method == "GET" else None
        if answer is None and call.method == "POST":
            answer = await self._change(call, parts)
        if answer is None:
            _explain_absence(call, parts)
        await call.reply(json_bytes(answer))

    def _look_up(self, parts: tuple[str, ...]) -> Any:
        """The answer to a GET; None: there is none."""
        inference = self._inference
        match parts:
            case ():
                return inference.server_metadata()
            case ("models", "stats"):
                return inference.statistics()
            case ("models", name) | ("models", name, "versions", _) as place:
                return inference.metadata(name, _version(place))
            case ("models", name, "config") | ("models", name, "versions", _, "config") as place:
                return inference.config(name, _version(place))
            case ("models", name, "stats") | ("models", name, "versions", _, "stats") as place:
                return inference.statistics(name, _version(place))
        return None

    async def _change(self, call: HttpCall, parts: tuple[str, ...]) -> Any:
        """The answer to a POST; None: there is none."""
        if parts[:1] != ("repository",):
            return None
        _check_type(call)
        body = ControlBody.model_validate_json(await call.json_body(self._limits) or b"{}")
        match parts[1:]:
            case ("index",):
                return self._inference.index(body.ready)
            case ("models", name, "load"):
                await _while_there(call, self._inference.load(name, body.parameters))
                return {}
            case ("models", name, "unload"):
                await _while_there(call, self._inference.unload(name))
                return {}
        return None


async def _while_there(call: HttpCall, change: Coroutine[None, None, None]) -> None:
    """Wait for a change of the models; one whose client leaves before its turn is not made."""
    await call.wait(asyncio.ensure_future(change))


def _check_type(call: HttpCall) -> None:
    """Refuse what a form of any page can send; some clients send JSON without a type."""
    given = (call.header(b"content-type") or _JSON).partition(";")[0].strip().lower()
    if given not in (_JSON, _BYTES):
        raise UnsupportedMediaType(
            f"the repository takes JSON: send 'content-type: {_JSON}', or no content type"
        )


def _version(place: tuple[str, ...]) -> str:
    """The version in the parts of a path, if it has one."""
    return place[3] if place[2:3] == ("versions",) else ""


def _explain_absence(call: HttpCall, parts: tuple[str, ...]) -> NoReturn:
    """Raise what is wrong with a path or a method."""
    where = f"{call.method} {call.path[:200]}"
    match parts:
        case ("logging",) | ("trace", "setting") | ("models", _, "trace", "setting"):
            raise Unsupported("requests cannot change log and trace settings; ask the operator")
        case ("systemsharedmemory" | "cudasharedmemory", *_):
            raise Unsupported("shared memory is not supported: send tensors in the request")
        case ("repository", *_) | ("models", *_, "infer"):
            possible = "POST"
        case () | ("models", *_) | ("health", *_):
            possible = "GET"
        case _:
            possible = call.method
    if call.method != possible:
        raise MethodNotAllowed(f"{where} is not allowed; use {possible}")
    raise RouteNotFound(f"there is nothing at {where}")
