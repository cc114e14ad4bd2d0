"""What the OpenAPI document says of KServe v2; `KServe` answers before FastAPI sees anything."""

from typing import Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel

from sruserve.server.kserve.http.codec import InferHeader
from sruserve.server.kserve.http.management import ControlBody


class Failure(BaseModel):
    """Why there is no reply, in words."""

    error: str


class Live(BaseModel):
    live: bool


class Ready(BaseModel):
    ready: bool


class ModelReady(Ready):
    name: str


class ServerMetadata(BaseModel):
    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class OutputTensor(TensorMetadata):
    """Its elements are its `data`, or `binary_data_size` bytes behind the JSON."""

    data: list[Any] | None = None
    parameters: dict[str, Any] | None = None


class InferReply(BaseModel):
    model_name: str
    model_version: str
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[OutputTensor]


class IndexEntry(BaseModel):
    name: str
    version: str
    state: str
    reason: str


def _refusals(*more: int) -> dict[int | str, dict[str, Any]]:
    usual = (400, 401, 403, 404, 413, 429, 500, 501, 503)
    return {status: {"model": Failure} for status in (*usual, *more)}


_CONTROL, _INFER = _refusals(), _refusals(409, 410, 422)
_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_NOT_READY: dict[int | str, dict[str, Any]] = {503: {"model": Ready}}

router = APIRouter(prefix="/v2", tags=["KServe v2"])


@router.get("", responses=_CONTROL, summary="Describe the server")
async def server_metadata() -> ServerMetadata:
    raise NotImplementedError


@router.get("/health/live", summary="Is the process alive?")
async def live() -> Live:
    raise NotImplementedError


@router.get("/health/ready", responses=_NOT_READY, summary="Does it take work?")
async def ready() -> Ready:
    raise NotImplementedError


async def model_ready(model: str) -> ModelReady:
    raise NotImplementedError


async def model_metadata(model: str) -> ModelMetadata:
    raise NotImplementedError


async def model_config(model: str) -> dict[str, Any]:
    """In the shape of Triton's `ModelConfig`."""
    raise NotImplementedError


async def model_statistics(model: str) -> dict[str, Any]:
    """In the shape of Triton's `ModelStatisticsResponse`."""
    raise NotImplementedError


async def infer(model: str, body: InferHeader) -> InferReply:
    """Tensors as JSON, or in binary behind it, as `Inference-Header-Content-Length` says."""
    raise NotImplementedError


def _of_version(version: str) -> None:
    raise NotImplementedError


for _place, _more in (
    ("/models/{model}", []),
    ("/models/{model}/versions/{version}", [Depends(_of_version)]),
):
    router.get(
        f"{_place}/ready",
        responses={404: {"model": Failure}, 503: {"model": ModelReady}},
        dependencies=_more,
        summary="Does a model take work?",
    )(model_ready)
    for _path, _told, _summary in (
        (_place, model_metadata, "Describe a model"),
        (f"{_place}/config", model_config, "Its configuration"),
        (f"{_place}/stats", model_statistics, "Its statistics"),
    ):
        router.get(_path, dependencies=_more, responses=_CONTROL, summary=_summary)(_told)
    router.post(
        f"{_place}/infer",
        responses={**_INFER, 200: {"content": _BINARY}},
        openapi_extra={"requestBody": {"content": _BINARY}},
        dependencies=_more,
        summary="Infer",
    )(infer)


@router.get("/models/stats", responses=_CONTROL, summary="Statistics of all models")
async def statistics() -> dict[str, Any]:
    raise NotImplementedError


@router.post("/repository/index", responses=_CONTROL, summary="List the models")
async def index(body: ControlBody) -> list[IndexEntry]:
    raise NotImplementedError


@router.post("/repository/models/{model}/load", responses=_CONTROL, summary="Load a model")
async def load(model: str, body: ControlBody) -> dict[str, Any]:
    raise NotImplementedError


@router.post("/repository/models/{model}/unload", responses=_CONTROL, summary="Unload a model")
async def unload(model: str, body: ControlBody) -> dict[str, Any]:
    raise NotImplementedError
