"""The models of all replies under `/v2`: they describe the API, and tests validate replies."""

from typing import Any

from pydantic import BaseModel


class Failure(BaseModel):
    """The message of an error."""

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
    """Its elements are in `data`, or in `binary_data_size` bytes after the JSON."""

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
