"""No call ends the gRPC server, and one that has ended does not go unnoticed."""

import logging
import threading
from typing import Any

import grpc
import httpx
import pytest
import tritonclient.grpc as triton
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc.service_pb2 import ModelInferRequest

from sruserve.server.app import Application
from sruserve.server.kserve.grpc import core as grpc_core
from sruserve.server.kserve.grpc.service import SERVICE
from sruserve.server.pulse import Pulse
from tests.server.conftest import Serve
from tests.server.kserve.conftest import grpc_address
from tests.server.kserve.grpc_inputs import INFER, inputs_of
from tests.server.kserve.raw_http2 import RawClient, message
from tests.server.observing import metric, until

MESSAGE = "Method not found!"
ANSWERED = f'sru_requests_total{{model="question",outcome="ok",route="{INFER}"}}'


@pytest.mark.parametrize("path", ["/\xff", "\xff", "/\xc3", "/inference.GRPCInferenceService/\x80"])
def test_a_path_that_is_not_utf8_ends_its_call_alone(
    grpc_server: tuple[httpx.Client, Application], channel: grpc.Channel, rpc: Any, path: str
) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    assert grpc_server[1].grpc is not None
    with RawClient(grpc_server[1].grpc.port) as client:
        for _ in range(3):
            call = client.call(path)
            client.until(lambda call=call: call in client.ended)  # type: ignore[misc]
            assert MESSAGE.encode() in client.ended[call]
    assert watch.is_active()
    watch.cancel()
    with triton.InferenceServerClient(grpc_address(grpc_server[1])) as another:
        assert another.is_server_live()
    assert rpc.infer("question", inputs_of(triton, "question")) is not None


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "ModelStatistics"])
def test_metadata_that_is_not_utf8_is_not_logged(
    grpc_server: tuple[httpx.Client, Application], caplog: pytest.LogCaptureFixture, method: str
) -> None:
    assert grpc_server[1].grpc is not None
    with RawClient(grpc_server[1].grpc.port) as client:
        call = client.call(f"/{SERVICE}/{method}", authorization="Bearer secret\xff", x="\xff")
        client.send(call, message(b""), end=True)
        client.until(lambda: call in client.ended)
    assert caplog.records == []


def test_a_client_that_leaves_before_its_reply_is_not_logged(
    grpc_server: tuple[httpx.Client, Application], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, cygrpc.__name__)
    http, server = grpc_server
    assert server.grpc is not None
    request = ModelInferRequest(model_name="question")
    request.inputs.add(name="text", datatype="BYTES", shape=[1, 1])
    request.raw_input_contents.append(b"\x01\0\0\0a")
    before = metric(http, ANSWERED)
    with RawClient(server.grpc.port, window=0) as client:
        call = client.call(f"/{SERVICE}/ModelInfer")
        client.send(call, message(request.SerializeToString()), end=True)
        until(lambda: metric(http, ANSWERED) > before)
    until(lambda: any("raised in core" in text for text in caplog.messages))
    assert {record.levelno for record in caplog.get_records("call")} == {logging.DEBUG}


def test_what_else_grpcio_says_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(cygrpc._LOGGER, logging.Logger)
    cygrpc._LOGGER.exception("Unexpected [%s]", "ValueError")
    assert caplog.messages == ["Unexpected [ValueError]"]


def test_the_metadata_of_a_stream_is_read_once(
    grpc_server: tuple[httpx.Client, Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert grpc_server[1].grpc is not None
    decoded: list[object] = []
    monkeypatch.setattr(
        type(cygrpc._LOGGER), "exception", lambda log, problem, *_: decoded.append(problem)
    )
    reads = []
    with RawClient(grpc_server[1].grpc.port) as client:
        for messages in (1, 5):
            decoded.clear()
            call = client.call(f"/{SERVICE}/ModelStreamInfer", x="\xff")
            client.send(call, messages * message(b""), end=True)
            client.until(lambda call=call: call in client.ended)  # type: ignore[misc]
            reads.append(len(decoded))
    assert reads[0] == reads[1] > 0


@pytest.mark.parametrize("path", ["/", "/nothing", "/inference.GRPCInferenceService/Nothing"])
def test_a_method_that_does_not_exist_is_not_implemented(
    grpc_server: tuple[httpx.Client, Application], channel: grpc.Channel, path: str
) -> None:
    del grpc_server
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(path)(b"", timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert caught.value.details() == MESSAGE


def test_a_grpc_server_that_has_ended_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    ended = threading.Event()
    pulse = Pulse(1, lambda: None, ended.set)

    async def fail(core: Any) -> Any:
        await cygrpc.AioServer._request_call(core)
        raise OSError("whatever")

    monkeypatch.setattr(grpc_core._RegisteredOnly, "_request_call", fail)
    with serve("question", pulse=pulse, grpc_port=0) as (http, application):
        assert application.grpc is not None
        assert application.grpc.alive
        assert not pulse.failed
        with grpc.insecure_channel(grpc_address(application)) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(), timeout=60
            )
            next(watch)  # a call that stays open hides nothing
            call = channel.unary_unary("/nothing").future(b"")
            assert ended.wait(60)
            call.cancel()  # if it was not ended with the server
            with pytest.raises((grpc.RpcError, grpc.FutureCancelledError)):
                call.result()
            watch.cancel()
        assert pulse.failed
        assert not application.grpc.alive
        assert http.get("/livez").status_code == 200
    assert application.grpc.alive  # it was stopped on purpose


def test_the_largest_settings_are_within_what_the_core_takes(serve: Serve) -> None:
    settings = {"grpc_streams": 2**31 - 1, "keep_alive_seconds": 2_147_483}
    with (
        serve("question", grpc_port=0, **settings) as (_, application),
        triton.InferenceServerClient(grpc_address(application)) as client,
    ):
        assert client.is_server_live()
