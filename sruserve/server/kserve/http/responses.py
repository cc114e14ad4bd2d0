"""The models of all replies under `/v2`: they describe the API, and tests validate replies."""

from typing import Any

from pydantic import BaseModel, Field


class Failure(BaseModel):
    """The message of an error."""

    error: str = Field(description="What was wrong, and what to change.")


class Live(BaseModel):
    live: bool = Field(description="Whether the server runs.")


class Ready(BaseModel):
    ready: bool = Field(description="Whether requests can be answered now.")


class ModelReady(Ready):
    name: str = Field(description="Id of the model.")


class ServerMetadata(BaseModel):
    name: str = Field(description="Always `sruserve`.")
    version: str = Field(description="Version of the server.")
    extensions: list[str] = Field(description="Names of the supported extensions of the protocol.")


class TensorMetadata(BaseModel):
    name: str = Field(description="Name of the tensor.")
    datatype: str = Field(description="Type of its elements, such as `FP32`, `INT64` or `BYTES`.")
    shape: list[int] = Field(
        description="Its dimensions; -1 in a model's description stands for any size."
    )


class ModelMetadata(BaseModel):
    name: str = Field(description="Id of the model.")
    versions: list[str] = Field(description="Its served versions.")
    platform: str = Field(description="What runs the model.")
    inputs: list[TensorMetadata] = Field(description="The inputs that a request may have.")
    outputs: list[TensorMetadata] = Field(description="The outputs that a reply may have.")


class OutputTensor(TensorMetadata):
    """Its elements are in `data`, or in `binary_data_size` bytes after the JSON."""

    data: list[Any] | None = Field(
        None, description="Its elements in row-major order; null for a binary tensor."
    )
    parameters: dict[str, Any] | None = Field(
        None, description="`binary_data_size`: its bytes after the JSON."
    )


class InferReply(BaseModel):
    model_name: str = Field(description="Id of the model that answered.")
    model_version: str = Field(description="Version of the model that answered.")
    id: str | None = Field(None, description="The `id` of the request, if it had one.")
    parameters: dict[str, Any] | None = Field(
        None, description="`sru_state`: the state, if `sru_return_state` is set."
    )
    outputs: list[OutputTensor] = Field(description="The requested outputs, or all of them.")


class IndexEntry(BaseModel):
    name: str = Field(description="Id of the model.")
    version: str = Field(description="Its version, or the one that was unloaded.")
    state: str = Field(description="`READY` or `UNAVAILABLE`.")
    reason: str = Field(description="Why it is unavailable; empty for a ready model.")
