"""Convert tritonclient's protobuf messages of KServe to requests, and responses to messages."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as proto

from sruserve.server.errors import InputTooLong, InvalidRequest, MalformedBody
from sruserve.server.json_limits import MAX_JSON_CONTAINERS
from sruserve.server.kserve.binary import read_binary, write_binary
from sruserve.server.kserve.datatypes import BYTES, NUMBERS, check_count, check_datatype
from sruserve.server.kserve.grpc.parts import MAX_FIELDS, check_fields
from sruserve.server.kserve.infer_body import MAX_PARAMETERS, MAX_TENSORS, check_in_message
from sruserve.server.kserve.messages import (
    InferRequest,
    InferResponse,
    RequestedOutput,
    Tensor,
)

_MAX_ID = 1024  # characters
_MAX_DIMENSIONS = 16
# the fields of elements that are not raw bytes; FP16 has none
_FIELDS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents",
    "INT32": "int_contents", "INT64": "int64_contents", "UINT8": "uint_contents",
    "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", BYTES: "bytes_contents",
}  # fmt: skip


def parse(kind: Any, data: bytes) -> Any:
    """Parse a message of a kind; raises `MalformedBody`."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise MalformedBody(
            f"the message is not a valid {kind.DESCRIPTOR.name}; send one"
        ) from None


def read_request(data: bytes) -> InferRequest:
    """The inference in a serialized `ModelInferRequest`; raises `InvalidRequest`."""
    if len(data) > MAX_FIELDS:  # a shorter message cannot have more fields
        check_fields(proto.ModelInferRequest, data)
    message = parse(proto.ModelInferRequest, data)
    if len(message.id) > _MAX_ID:
        raise InvalidRequest(f"'id' may have {_MAX_ID} characters at most", param="id")
    if max(len(message.inputs), len(message.outputs)) > MAX_TENSORS:
        raise InvalidRequest(
            f"a request may have at most {MAX_TENSORS} inputs and {MAX_TENSORS} outputs"
        )
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise InvalidRequest(
            f"there are {len(message.inputs)} inference inputs and {len(raw)} raw contents: send "
            "one raw content for each input, or none",
            param="inputs",
        )
    contents = list(raw) or [None] * len(message.inputs)
    return InferRequest(
        message.model_name,
        message.model_version,
        message.id,
        [_read_input(item, data) for item, data in zip(message.inputs, contents, strict=True)],
        [RequestedOutput(item.name, parameters(item.parameters)) for item in message.outputs],
        parameters(message.parameters),
    )


def write_response(response: InferResponse) -> Any:
    """A response as a `ModelInferResponse`, whose tensors are raw bytes."""
    message = proto.ModelInferResponse(
        model_name=response.model, model_version=response.version, id=response.id
    )
    for name, value in response.parameters.items():
        message.parameters[name].CopyFrom(_parameter(value))
    for output in response.outputs:
        message.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        message.raw_output_contents.append(write_binary(output))
    return message


def parameters(messages: Mapping[str, Any]) -> dict[str, Any]:
    """The values of parameters, without those that have none; raises `InvalidRequest`."""
    if len(messages) > MAX_PARAMETERS:
        raise InvalidRequest(
            f"there may be at most {MAX_PARAMETERS} parameters", param="parameters"
        )
    chosen = {name: value.WhichOneof("parameter_choice") for name, value in messages.items()}
    return {name: getattr(messages[name], kind) for name, kind in chosen.items() if kind}


def _parameter(value: Any) -> Any:
    kind = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    return proto.InferParameter(**{kind[type(value)]: value})


def _read_input(message: Any, raw: bytes | None) -> Tensor:
    name, datatype, sizes = message.name, message.datatype, message.shape
    check_datatype(name, datatype)
    check_in_message(name, message.parameters)
    if len(sizes) > _MAX_DIMENSIONS or any(size < 0 for size in sizes):
        raise InvalidRequest(
            f"the shape of inference input '{name[:100]}' must have {_MAX_DIMENSIONS} sizes at "
            "most, none of them negative",
            param="inputs",
        )
    shape = tuple(sizes)
    filled = [field.name for field, _ in message.contents.ListFields()]
    if raw is not None:
        if filled:
            raise InvalidRequest(
                f"contents field must not be specified when using raw_input_contents for "
                f"'{name[:100]}'",
                param="inputs",
            )
        return read_binary(name, datatype, shape, memoryview(raw))
    field = _FIELDS.get(datatype)
    if field is None or any(other != field for other in filled):
        raise InvalidRequest(
            f"the {datatype} elements of inference input '{name[:100]}' must be in "
            f"{field or 'raw_input_contents'}",
            param="inputs",
        )
    return _read_contents(name, datatype, shape, getattr(message.contents, field))


def _read_contents(
    name: str, datatype: str, shape: tuple[int, ...], elements: Sequence[Any]
) -> Tensor:
    check_count(name, shape, len(elements))
    if len(elements) > MAX_JSON_CONTAINERS:  # reading each would block the event loop
        raise InputTooLong(
            f"inference input '{name[:100]}' has {len(elements)} elements in 'contents', which may "
            f"hold {MAX_JSON_CONTAINERS}: send them as raw_input_contents",
            param="inputs",
        )
    values = list(elements)
    if datatype == BYTES:
        return Tensor(name, datatype, shape, values)
    try:
        return Tensor(name, datatype, shape, np.array(values, NUMBERS[datatype]))
    except OverflowError:
        raise InvalidRequest(
            f"inference input '{name[:100]}' has elements outside the range of {datatype}: "
            "send numbers within it",
            param="inputs",
        ) from None
