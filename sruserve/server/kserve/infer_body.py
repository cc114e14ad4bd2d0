"""Bodies of inferences, over HTTP and as sequences keep them: JSON, then binary tensors."""

from collections.abc import Container, Iterable, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from sruserve.server.errors import InvalidRequest
from sruserve.server.json_output import json_bytes, long_json
from sruserve.server.kserve.binary import read_binary, write_binary
from sruserve.server.kserve.datatypes import check_datatype
from sruserve.server.kserve.json_tensors import json_values, read_json
from sruserve.server.kserve.messages import (
    InferRequest,
    InferResponse,
    Parameters,
    RequestedOutput,
    Tensor,
)

_Dimension = Annotated[int, Field(ge=0, le=2**63 - 1)]
_STRICT = ConfigDict(strict=True, extra="forbid")
# more than any model has; reading further ones would only take time
MAX_PARAMETERS, MAX_TENSORS = 100, 32
# parameters that only say how to encode an output
_OF_TRANSPORT = ("binary_data", "binary_data_output")
_Parameters = Annotated[
    dict[str, Any],
    Field(
        default_factory=dict,
        max_length=MAX_PARAMETERS,
        description="Parameters of the protocol's extensions, such as `binary_data_size`.",
    ),
]


class InputHeader(BaseModel):
    """An input, whose elements are its `data` or follow the header."""

    model_config = _STRICT

    name: str = Field(description="Name of the input.")
    shape: Annotated[list[_Dimension], Field(max_length=16, description="Its dimensions.")]
    datatype: str = Field(description="Type of its elements, such as `FP32`, `INT64` or `BYTES`.")
    parameters: _Parameters
    data: list[Any] | None = Field(
        None,
        description="Its elements in row-major order, nested or flat; left out for binary data.",
    )


class OutputHeader(BaseModel):
    """A requested output."""

    model_config = _STRICT

    name: str = Field(description="Name of the output.")
    parameters: _Parameters


class InferHeader(BaseModel):
    """The JSON of an inference."""

    model_config = _STRICT

    id: Annotated[str, Field(max_length=1024, description="The reply repeats it.")] = ""
    parameters: _Parameters
    inputs: Annotated[
        list[InputHeader],
        Field(max_length=MAX_TENSORS, fail_fast=True, description="The input tensors."),
    ]
    outputs: Annotated[
        list[OutputHeader],
        Field(
            default_factory=list,
            max_length=MAX_TENSORS,
            fail_fast=True,
            description="The outputs to return; all of them if left out.",
        ),
    ]


def read_request(model: str, version: str, body: bytes, header_length: int) -> InferRequest:
    """The inference in a body whose first bytes are JSON; raises `InvalidRequest`."""
    header = InferHeader.model_validate_json(body[:header_length])
    inputs, at = [], header_length
    for input_header in header.inputs:
        size = input_header.parameters.get("binary_data_size", 0)
        if type(size) is not int or not 0 <= size <= len(body) - at:
            raise InvalidRequest(
                f"'binary_data_size' of inference input '{input_header.name[:100]}' exceeds the "
                "body: send as many bytes as it says",
                param="inputs",
            )
        inputs.append(_read_input(input_header, memoryview(body)[at : at + size]))
        at += size
    if at != len(body):
        raise InvalidRequest(
            f"unexpected additional input data for model '{model}': {len(body) - at} bytes after "
            "the last input: leave them out, or name the input that they belong to"
        )
    outputs = [RequestedOutput(output.name, output.parameters) for output in header.outputs]
    return InferRequest(model, version, header.id, inputs, outputs, header.parameters)


def write_response(response: InferResponse, binary: Iterable[str]) -> tuple[bytes, bytes | None]:
    """A response's JSON, and the bytes that follow it; None: no output is binary.

    binary: names of the binary outputs.
    """
    binary_names = set(binary)
    headers, parts = _describe(response.outputs, binary_names)
    head: dict[str, Any] = {
        "model_name": response.model,
        "model_version": response.version,
        "outputs": headers,
    }
    if response.id:
        head["id"] = response.id
    if response.parameters:
        head["parameters"] = response.parameters
    some = any(output.name in binary_names for output in response.outputs)
    return long_json(head), b"".join(parts) if some else None


def pack_request(request: InferRequest) -> bytes:
    """The content of an inference without its id, the same for all transports."""
    headers, parts = _describe(request.inputs, {tensor.name for tensor in request.inputs})
    outputs = [(output.name, _in_order(output.parameters)) for output in request.outputs]
    return b"".join([json_bytes([headers, outputs, _in_order(request.parameters)]), *parts])


def pack_response(response: InferResponse) -> bytes:
    """A response as bytes for a store, for `unpack_response`."""
    head, data = write_response(response, (output.name for output in response.outputs))
    return len(head).to_bytes(4, "little") + head + (data or b"")


def unpack_response(packed: bytes) -> InferResponse:
    """The response that `pack_response` packed."""
    at = 4 + int.from_bytes(packed[:4], "little")
    head = from_json(packed[4:at])
    outputs = []
    for output in head["outputs"]:
        end = at + output["parameters"]["binary_data_size"]
        shape = tuple(output["shape"])
        outputs.append(
            read_binary(output["name"], output["datatype"], shape, memoryview(packed)[at:end])
        )
        at = end
    return InferResponse(
        head["model_name"], head["model_version"], head.get("id", ""), outputs,
        head.get("parameters", {}),
    )  # fmt: skip


def check_in_message(name: str, parameters: Container[str]) -> None:
    """Raise if an input's parameters refer to shared memory."""
    if "shared_memory_region" in parameters:
        raise InvalidRequest(
            f"inference input '{name[:100]}' is in shared memory, which this server does not read; "
            "send its elements",
            param="inputs",
        )


def _read_input(header: InputHeader, data: memoryview) -> Tensor:
    name, shape, parameters = header.name, tuple(header.shape), header.parameters
    check_datatype(name, header.datatype)
    check_in_message(name, parameters)
    if header.data is None and "binary_data_size" in parameters:
        return read_binary(name, header.datatype, shape, data)
    if header.data is None or len(data):
        raise InvalidRequest(
            f"inference input '{name[:100]}' needs either 'data' or 'binary_data_size'",
            param="inputs",
        )
    return read_json(name, header.datatype, shape, header.data)


def _in_order(parameters: Parameters) -> list[tuple[str, Any]]:
    """Sorted parameters, because the order of a protobuf map depends on the process."""
    return sorted(item for item in parameters.items() if item[0] not in _OF_TRANSPORT)


def _describe(
    tensors: Sequence[Tensor], binary: set[str]
) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The JSON of tensors, and the bytes of those that are binary."""
    headers, parts = [], []
    for tensor in tensors:
        header: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.shape,
        }
        if tensor.name in binary:
            parts.append(write_binary(tensor))
            header["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            header["data"] = json_values(tensor)
        headers.append(header)
    return headers, parts
