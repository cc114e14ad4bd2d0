"""A call that is refused leaves nothing that only the garbage collector could free."""

from typing import Any
from urllib.parse import urljoin

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from tritonclient.grpc import service_pb2 as proto

from tests.memory import grows_by_less, malloc_bytes
from tests.server.conftest import Leftovers


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("ModelInfer", proto.ModelInferRequest(model_name="absent")),
        ("ModelInfer", proto.ModelInferRequest(model_name="question", id="x" * 2000)),
        ("ModelMetadata", proto.ModelMetadataRequest(name="absent")),
        ("ModelReady", proto.ModelReadyRequest(name="absent")),
        ("/grpc.health.v1.Health/Check", HealthCheckRequest(service="other")),
    ],
    ids=["an unknown model", "a long id", "metadata", "a probe", "health"],
)
def test_a_refusal_over_grpc(
    channel: grpc.Channel, method: str, message: Any, leftovers: Leftovers
) -> None:
    call = channel.unary_unary(urljoin("/inference.GRPCInferenceService/", method))
    for _ in range(3):
        with pytest.raises(grpc.RpcError):
            call(message.SerializeToString(), timeout=60)
    assert not leftovers()


@pytest.mark.usefixtures("leftovers")  # which keeps the garbage collector away
def test_no_message_stays_in_memory(channel: grpc.Channel) -> None:
    message = proto.ModelInferRequest(model_name="question", id="x" * 900_000).SerializeToString()
    infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

    def refuse() -> None:
        for _ in range(40):
            with pytest.raises(grpc.RpcError):
                infer(message, timeout=60)

    refuse()  # fills what is filled once
    assert grows_by_less(10 << 20, malloc_bytes, refuse)
