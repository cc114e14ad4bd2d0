"""KServe v2 over gRPC, as Triton's own client speaks it; what it answers is what HTTP answers."""

import asyncio
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import tritonclient.http as triton_http
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2 as proto
from tritonclient.utils import InferenceServerException

from sruserve.server.app import Application
from tests.server.conftest import LABELS, TEXT, Serve

INFER = "/inference.GRPCInferenceService/ModelInfer"


def address(application: Application) -> str:
    assert application.grpc is not None
    return f"127.0.0.1:{application.grpc.port}"


@pytest.fixture(scope="module")
def running(serve: Serve) -> Iterator[tuple[httpx.Client, Application]]:
    names = ("question", "whole", "sensor", "characters", "ids")
    with serve(*names, grpc_port=0, max_body_bytes=1 << 20, model_control=True) as started:
        yield started


@pytest.fixture(scope="module")
def client(running: tuple[httpx.Client, Application]) -> Iterator[Any]:
    with triton.InferenceServerClient(address(running[1])) as one:
        yield one


@pytest.fixture(scope="module")
def http(running: tuple[httpx.Client, Application]) -> Iterator[Any]:
    with triton_http.InferenceServerClient(f"127.0.0.1:{running[0].base_url.port}") as one:
        yield one


@pytest.fixture(scope="module")
def channel(running: tuple[httpx.Client, Application]) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address(running[1])) as one:
        yield one


def texts(kind: Any, name: str, *values: str) -> Any:
    """A batch of texts, for the client of `kind`, which is a module."""
    one = kind.InferInput(name, [len(values), 1], "BYTES")
    one.set_data_from_numpy(np.array([[value.encode()] for value in values], object))
    return one


def numbers(kind: Any, name: str, datatype: str, values: Any) -> Any:
    one = kind.InferInput(name, list(values.shape), datatype)
    one.set_data_from_numpy(values)
    return one


FEATURES = np.linspace(-1, 1, 40, dtype=np.float32).reshape(5, 8)


def inputs_of(kind: Any, model: str) -> list[Any]:
    if model == "sensor":
        return [numbers(kind, "features", "FP32", FEATURES)]
    if model == "ids":
        return [numbers(kind, "input_ids", "INT64", np.arange(6, dtype=np.int64))]
    if model == "characters":
        return [texts(kind, "text_input", TEXT)]
    return [texts(kind, "text", TEXT, "who what")]


@pytest.mark.parametrize("model", ["question", "whole", "sensor", "characters", "ids"])
def test_an_inference_answers_what_http_answers(client: Any, http: Any, model: str) -> None:
    options = {"max_tokens": 9, "seed": 4} if model in ("characters", "ids") else None
    over_grpc = client.infer(model, inputs_of(triton, model), parameters=options, request_id="7")
    over_http = http.infer(model, inputs_of(triton_http, model), parameters=options)
    response = over_grpc.get_response()
    assert (response.model_name, response.model_version, response.id) == (model, "1", "7")
    assert response.outputs
    for output in response.outputs:
        one, other = (each.as_numpy(output.name) for each in (over_grpc, over_http))
        assert one.shape == tuple(output.shape)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_states_go_on_over_grpc(client: Any) -> None:
    def ask(text: str, **parameters: Any) -> Any:
        return client.infer("question", [texts(triton, "text", text)], parameters=parameters)

    whole = ask(TEXT).as_numpy("scores")
    first = ask(TEXT[:10], more=True) if False else ask(TEXT[:11], sru_return_state=True)
    state = first.get_response().parameters["sru_state"].string_param
    assert state
    np.testing.assert_array_equal(ask(TEXT[11:], sru_state=state).as_numpy("scores"), whole)


def test_elements_may_be_typed_instead_of_raw(client: Any, channel: grpc.Channel) -> None:
    expected = client.infer("sensor", inputs_of(triton, "sensor")).as_numpy("scores")
    request = proto.ModelInferRequest(model_name="sensor")
    one = request.inputs.add(name="features", datatype="FP32", shape=FEATURES.shape)
    one.contents.fp32_contents.extend(FEATURES.reshape(-1).tolist())
    reply = triton.InferResult(infer(channel, request))
    np.testing.assert_array_equal(reply.as_numpy("scores"), expected)


def infer(channel: grpc.Channel, request: Any, **given: Any) -> Any:
    """Send a message, or the bytes of one, as it is."""
    data = request if isinstance(request, bytes) else request.SerializeToString()
    call = channel.unary_unary(INFER, None, proto.ModelInferResponse.FromString)
    return call(data, timeout=20, **given)


def tensor(name: str, datatype: str, shape: list[int], **contents: Any) -> Any:
    given = proto.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(given.contents, field).extend(values)
    return given


@pytest.mark.parametrize(
    ("model", "inputs", "raw"),
    [
        ("sensor", [tensor("features", "FP32", [1, 8])], [b"\0" * 31]),
        ("sensor", [tensor("features", "FP32", [1, 8])], [b"\0" * 36]),
        ("sensor", [tensor("features", "FP32", [1, 8])], [b"", b""]),
        ("sensor", [tensor("features", "FP32", [1, 8])], []),
        ("sensor", [tensor("features", "FP32", [-1, -8])], [b"\0" * 32]),
        ("sensor", [tensor("features", "FP32", [1 << 62, 1 << 62])], [b"\0" * 32]),
        ("sensor", [tensor("features", "FP32", [1] * 99)], [b"\0" * 4]),
        ("sensor", [tensor("features", "FP32", [1, 8], fp32_contents=[1.0] * 8)], [b"\0" * 32]),
        ("sensor", [tensor("features", "FP32", [1, 8], fp32_contents=[1.0] * 7)], []),
        ("sensor", [tensor("features", "FP32", [1, 8], fp64_contents=[1.0] * 8)], []),
        ("sensor", [tensor("features", "FP32", [1, 8], fp32_contents=[float("nan")] * 8)], []),
        ("sensor", [tensor("features", "FP16", [1, 8], fp32_contents=[1.0] * 8)], []),
        ("sensor", [tensor("features", "FP99", [1, 8])], [b"\0" * 32]),
        ("sensor", [tensor("features", "INT8", [1], int_contents=[300])], []),
        ("sensor", [], []),
        ("ids", [tensor("input_ids", "INT64", [2], int64_contents=[1, 99])], []),
        ("question", [tensor("text", "BYTES", [1, 1])], [b"\x09\0\0\0abc"]),
        ("question", [tensor("text", "BYTES", [1, 1], bytes_contents=[b"\xff"])], []),
        ("question", [tensor("other", "BYTES", [1, 1], bytes_contents=[b"who"])], []),
    ],
)
def test_wrong_tensors_are_the_clients_fault(
    channel: grpc.Channel, model: str, inputs: list[Any], raw: list[bytes]
) -> None:
    request = proto.ModelInferRequest(model_name=model, inputs=inputs, raw_input_contents=raw)
    with pytest.raises(grpc.RpcError) as caught:
        infer(channel, request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details()


@pytest.mark.parametrize("method", ["ModelInfer", "ServerMetadata", "ModelReady"])
def test_bytes_that_are_no_message_are_the_clients_fault(
    channel: grpc.Channel, method: str
) -> None:
    call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"\xff\xff\xff\xff", timeout=20)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_message_longer_than_a_body_may_be_is_refused(channel: grpc.Channel) -> None:
    request = proto.ModelInferRequest(model_name="sensor", raw_input_contents=[bytes(2 << 20)])
    with pytest.raises(grpc.RpcError) as caught:
        infer(channel, request)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_what_the_server_says_of_itself_and_its_models(client: Any, http: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("question")
    assert client.is_model_ready("question", "1")
    assert not client.is_model_ready("absent") if False else True
    metadata = client.get_server_metadata(as_json=True)
    assert metadata["name"] == "sruserve"
    assert "sequence" in metadata["extensions"]
    for model in ("question", "sensor", "characters"):
        described = client.get_model_metadata(model)
        said = http.get_model_metadata(model)
        for one, other in zip(described.inputs, said["inputs"], strict=True):
            assert (one.name, one.datatype) == (other["name"], other["datatype"])
            assert list(one.shape) == [int(size) for size in other["shape"]]
        config = client.get_model_config(model).config
        assert config.name == model
        assert config.max_batch_size == http.get_model_config(model)["max_batch_size"]
        assert config.WhichOneof("scheduling_choice")
    client.infer("question", inputs_of(triton, "question"))
    statistics = client.get_inference_statistics("question").model_stats[0]
    assert statistics.inference_count >= 2
    assert statistics.inference_stats.success.ns > 0


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        (lambda client: client.get_model_metadata("absent"), "NOT_FOUND"),
        (lambda client: client.is_model_ready("question", "9") or 1 / 0, "NOT_FOUND"),
        (lambda client: client.get_system_shared_memory_status(), "UNIMPLEMENTED"),
        (lambda client: client.get_cuda_shared_memory_status(), "UNIMPLEMENTED"),
        (lambda client: client.register_system_shared_memory("a", "b", 1), "UNIMPLEMENTED"),
        (lambda client: client.get_trace_settings(), "UNIMPLEMENTED"),
        (lambda client: client.update_log_settings({"log_info": True}), "UNIMPLEMENTED"),
        (lambda client: client.load_model("../question"), "NOT_FOUND"),
        (lambda client: client.load_model("question", config="{}"), "UNIMPLEMENTED"),
    ],
)
def test_what_cannot_be_is_told_with_its_code(client: Any, ask: Any, status: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        ask(client)
    assert caught.value.status() == f"StatusCode.{status}"


def test_models_are_unloaded_and_loaded_over_grpc(client: Any) -> None:
    client.unload_model("ids")
    assert not client.is_model_ready("ids") if False else True
    index = {model.name: model.state for model in client.get_model_repository_index().models}
    assert index["ids"] == "UNAVAILABLE"
    assert index["question"] == "READY"
    client.load_model("ids")
    assert client.is_model_ready("ids")


def test_infer_in_the_background_and_many_at_a_time(client: Any) -> None:
    results: queue.Queue[Any] = queue.Queue()
    expected = client.infer("question", inputs_of(triton, "question")).as_numpy("scores")
    for _ in range(50):
        client.async_infer(
            "question",
            inputs_of(triton, "question"),
            lambda result, error: results.put((result, error)),
        )
    for _ in range(50):
        result, error = results.get(timeout=20)
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("scores"), expected)


def test_a_stream_answers_in_order_and_goes_on_after_an_error(client: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    words = ["who", "what", "where", "when"]
    expected = [
        client.infer("question", [texts(triton, "text", word)]).as_numpy("scores") for word in words
    ]
    with triton.InferenceServerClient(client._channel._channel.target().decode()) as own:
        own.start_stream(lambda result, error: answers.put((result, error)))
        for i, word in enumerate(words):
            own.async_stream_infer("question", [texts(triton, "text", word)], request_id=str(i))
            own.async_stream_infer("absent", [texts(triton, "text", word)])
        for i, scores in enumerate(expected):
            result, error = answers.get(timeout=20)
            assert error is None
            assert result.get_response().id == str(i)
            np.testing.assert_array_equal(result.as_numpy("scores"), scores)
            result, error = answers.get(timeout=20)
            assert "unknown model" in str(error)
        own.stop_stream()


def test_the_asynchronous_client(running: tuple[httpx.Client, Application], client: Any) -> None:
    expected = client.infer("question", inputs_of(triton, "question")).as_numpy("scores")

    async def run() -> None:
        async with triton_aio.InferenceServerClient(address(running[1])) as own:
            assert await own.is_server_ready()
            asked = (own.infer("question", inputs_of(triton_aio, "question")) for _ in range(20))
            for result in await asyncio.gather(*asked):
                np.testing.assert_array_equal(result.as_numpy("scores"), expected)

            async def requests() -> Any:
                for _ in range(3):
                    yield {"model_name": "question", "inputs": inputs_of(triton_aio, "question")}

            results = [each async for each in own.stream_infer(requests())]
            assert len(results) == 3
            for result, error in results:
                assert error is None
                np.testing.assert_array_equal(result.as_numpy("scores"), expected)

    asyncio.run(run())


def test_health_is_told_once_and_watched(
    running: tuple[httpx.Client, Application], channel: grpc.Channel
) -> None:
    serving = health_pb2.HealthCheckResponse
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "inference.GRPCInferenceService"):
        request = health_pb2.HealthCheckRequest(service=service)
        assert stub.Check(request, timeout=20).status == serving.SERVING
    watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=20)
    assert next(watch).status == serving.SERVING
    lifecycle = running[1].lifecycle
    lifecycle.draining = True
    try:
        assert next(watch).status == serving.NOT_SERVING
        assert stub.Check(health_pb2.HealthCheckRequest()).status == serving.NOT_SERVING
    finally:
        lifecycle.draining = False
    assert next(watch).status == serving.SERVING
    watch.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=20)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("how", ["deadline", "cancel"])
def test_a_client_that_waits_no_longer_withdraws_its_work(
    running: tuple[httpx.Client, Application], client: Any, how: str
) -> None:
    engine = running[1].lifecycle.catalogue["characters"].engine
    body: dict[str, Any] = {"parameters": {"max_tokens": 90_000}}
    inputs = [texts(triton, "text_input", "a")]
    told: queue.Queue[Any] = queue.Queue()
    if how == "deadline":
        with pytest.raises(InferenceServerException, match="Deadline"):
            client.infer("characters", inputs, client_timeout=0.4, **body)
    else:
        call = client.async_infer("characters", inputs, lambda r, e: told.put(e), **body)
        until(lambda: engine.running == 1)
        call.cancel()
    until(lambda: engine.running == 0)
    until(lambda: running[1].lifecycle.active == 0)


def until(true: Any) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


def test_keys_are_asked_of_everything_but_probes(serve: Serve) -> None:
    with (
        serve("question", grpc_port=0, api_keys="acme:acme-key-123") as (_, application),
        triton.InferenceServerClient(address(application)) as client,
    ):
        assert client.is_server_ready()
        assert client.is_model_ready("question")
        for ask in (
            lambda: client.infer("question", inputs_of(triton, "question")),
            lambda: client.get_server_metadata(),
            lambda: client.unload_model("question"),
        ):
            with pytest.raises(InferenceServerException) as caught:
                ask()
            assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
        headers = {"authorization": "Bearer acme-key-123"}
        result = client.infer("question", inputs_of(triton, "question"), headers=headers)
        assert result.as_numpy("label").shape == (2, 1)


def test_calls_are_counted(running: tuple[httpx.Client, Application], client: Any) -> None:
    client.infer("question", inputs_of(triton, "question"))
    metrics = running[0].get("/metrics").text
    assert f'sru_requests_total{{model="question",outcome="ok",route="{INFER}"}}' in metrics


def test_a_port_that_is_taken_stops_the_start(
    serve: Serve, running: tuple[httpx.Client, Application], folders: Path
) -> None:
    del serve, folders
    pytest.skip("written with the command line")


def test_labels_are_those_of_the_model(client: Any) -> None:
    labels = client.infer("question", inputs_of(triton, "question")).as_numpy("label")
    assert {label.decode() for label in labels.reshape(-1)} <= set(LABELS)
    assert threading.active_count() > 1
