"""Inputs of inferences over gRPC."""

from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as proto

from tests.server.conftest import TEXT

FEATURES = np.linspace(-1, 1, 40, dtype=np.float32).reshape(5, 8)


INFER = "/inference.GRPCInferenceService/ModelInfer"


def texts(kind: Any, name: str, *values: str) -> Any:
    """A batch of texts, for the client of `kind`, which is a module."""
    one = kind.InferInput(name, [len(values), 1], "BYTES")
    one.set_data_from_numpy(np.array([[value.encode()] for value in values], object))
    return one


def numbers(kind: Any, name: str, datatype: str, values: Any) -> Any:
    one = kind.InferInput(name, list(values.shape), datatype)
    one.set_data_from_numpy(values)
    return one


def inputs_of(kind: Any, model: str) -> list[Any]:
    if model == "sensor":
        return [numbers(kind, "features", "FP32", FEATURES)]
    if model == "ids":
        return [numbers(kind, "input_ids", "INT64", np.arange(6, dtype=np.int64))]
    if model == "characters":
        return [texts(kind, "text_input", TEXT)]
    return [texts(kind, "text", TEXT, "who what")]


def infer(channel: grpc.Channel, request: Any, **options: Any) -> Any:
    """Send a message, or the bytes of one, as it is."""
    data = request if isinstance(request, bytes) else request.SerializeToString()
    call = channel.unary_unary(INFER, None, proto.ModelInferResponse.FromString)
    return call(data, timeout=60, **options)
