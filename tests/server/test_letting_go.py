"""A completion or a forecast that runs holds nothing long of its request: it is let go."""

import asyncio
import gc
import json
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.grpc import service_pb2 as proto

from sruserve.model.heads.regression import Regression
from sruserve.server.app import Application
from sruserve.server.engine.model_runner import ModelRunner
from sruserve.server.tasks.regress import RegressTask
from tests.server.conftest import Serve
from tests.server.http.raw_requests import UPGRADE, connect, frame
from tests.server.kserve.grpc_inputs import INFER
from tests.server.kserve.raw_http2 import RawClient, message
from tests.server.observing import until
from tests.support import save_random_model

Running = tuple[httpx.Client, Application]

SIZE = 200_000  # of what is long in a request
LONG = SIZE // 2
STEPS, WIDTH = 30_000, 4  # of features


@pytest.fixture(scope="module")
def running(
    serve: Serve, folders: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    forecaster = save_random_model(
        tmp_path_factory.mktemp("models") / "forecaster", "regress",
        regression=Regression(names=("a", "b", "c", "d"), forecasts=True), input_size=WIDTH,
    )  # fmt: skip
    chosen = folders / "characters", folders / "words", forecaster
    limits = {"max_input_bytes": 2 * SIZE, "grpc_port": 0}
    with serve(model_folders=chosen, models=None, **limits) as running:
        yield running


class DecodeGate:
    """Streams that decode, and forecasts, wait until `go_on` is set. waits: one does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits, self.go_on = threading.Event(), threading.Event()
        step, step_ahead = ModelRunner.step, RegressTask._step

        async def gated_step_ahead(*args: Any) -> Any:
            self.waits.set()
            while not self.go_on.is_set():
                await asyncio.sleep(0.01)
            return await step_ahead(*args)

        monkeypatch.setattr(RegressTask, "_step", gated_step_ahead)

        def gated_step(stepper: ModelRunner, batch: Any, *args: Any) -> Any:
            if not batch.inputs:
                self.waits.set()
                self.go_on.wait(60)
            return step(stepper, batch, *args)

        monkeypatch.setattr(ModelRunner, "step", gated_step)

    def check(self) -> None:
        """Wait for a completion that decodes and holds nothing long."""
        assert self.waits.wait(60)
        gc.collect()
        until(lambda: not long_ones())


@pytest.fixture
def decoding(running: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[DecodeGate]:
    gate = DecodeGate(monkeypatch)
    gc.collect()
    tracemalloc.start()
    try:
        yield gate
    finally:
        tracemalloc.stop()
        gate.go_on.set()
        engines = [served.engine for served in running[1].lifecycle.catalogue.values()]
        until(lambda: not any(engine.busy for engine in engines))


def long_ones() -> list[Any]:
    """What is in memory that is long and was made in the test."""
    return [each for each in tracemalloc.take_snapshot().traces if each.size > LONG]


ROUTES = ["/v1/completions", "events", "/v1/streams", "/v1/stream"]
LONG_FIELDS: list[dict[str, Any]] = [
    {"prompt": "x" * SIZE},
    {"prompt": [120] * (SIZE // 8)},
    # a long word is one token
    {"model": "words", "prompt": "x" * SIZE},
    {"allowed_token_ids": [65] * (SIZE // 8)},
]


def complete(running: Running, route: str, fields: Any, spaces: int = 0) -> socket.socket:
    """Ask for a completion over one of `ROUTES`. spaces: of white space behind the request."""
    body = {"model": "characters", "prompt": "a", "max_tokens": 1000} | fields
    if route == "events":
        route, body["stream"] = "/v1/completions", True
    return send(running, route, body, spaces)


def send(running: Running, route: str, body: dict[str, Any], spaces: int = 0) -> socket.socket:
    """Send a request, a step or a frame."""
    client, _ = running
    if route == "/v1/streams":
        stream = client.post(route, json={"model": body.pop("model")}).json()["id"]
        route, body["step"] = f"/v1/streams/{stream}/steps", 1
    data = json.dumps(body).encode() + b" " * spaces
    if route == "/v1/stream":
        connection = connect(client, UPGRADE)
        assert b" 101 " in connection.recv(4096)
        connection.sendall(frame(data, len(data)))
        return connection
    head = f"POST {route} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
    return connect(client, head.encode() + data)


@pytest.mark.parametrize("route", ROUTES)
def test_a_body_is_let_go_when_it_is_read(
    running: Running, decoding: DecodeGate, route: str
) -> None:
    with complete(running, route, {}, SIZE):
        decoding.check()


@pytest.mark.parametrize("fields", LONG_FIELDS, ids=["text", "ids", "word", "allowed"])
@pytest.mark.parametrize("route", ROUTES)
def test_a_long_field_is_let_go_when_its_job_is_queued(
    running: Running, decoding: DecodeGate, route: str, fields: dict[str, Any]
) -> None:
    with complete(running, route, fields):
        decoding.check()


@pytest.mark.parametrize("route", ["/v1/regress", "/v1/streams", "/v1/stream"])
def test_the_features_of_a_forecast_are_let_go(
    running: Running, decoding: DecodeGate, route: str
) -> None:
    body = {"model": "forecaster", "features": [[0.5] * WIDTH] * STEPS, "steps_ahead": 1}
    with send(running, route, body):
        del body
        decoding.check()


@pytest.mark.parametrize("binary", [False, True], ids=["JSON", "binary"])
@pytest.mark.parametrize("sequence", [False, True], ids=["alone", "sequence"])
def test_the_features_of_a_forecast_through_tensors_are_let_go(
    running: Running, decoding: DecodeGate, binary: bool, sequence: bool
) -> None:
    tensor = triton.InferInput("features", [STEPS, WIDTH], "FP32")
    tensor.set_data_from_numpy(np.full((STEPS, WIDTH), 0.5, np.float32), binary_data=binary)
    flags = {"sequence_id": 5, "sequence_start": True, "sequence_end": True} if sequence else {}
    data, length = triton.InferenceServerClient.generate_request_body(
        [tensor], parameters={"steps_ahead": 1}, **flags
    )
    more = "" if length is None else f"inference-header-content-length: {length}\r\n"
    head = "POST /v2/models/forecaster/infer HTTP/1.1\r\nhost: x\r\n"
    head += f"{more}content-length: {len(data)}\r\n\r\n"
    connection = connect(running[0], head.encode() + bytes(data))
    del tensor, data
    with connection:
        decoding.check()


@pytest.mark.parametrize("field", ["user", "metadata", "service_tier", "safety_identifier"])
def test_a_field_that_is_ignored_is_let_go(
    running: Running, decoding: DecodeGate, field: str
) -> None:
    with complete(running, "events", {field: ["x" * SIZE]}):
        decoding.check()


RESPONSES: dict[str, dict[str, Any]] = {
    "text": {"input": "x" * SIZE},
    "message": {"input": [{"role": "user", "content": "x" * SIZE}]},
    "instructions": {"instructions": "x" * SIZE},
    "ignored": {"user": ["x" * SIZE]},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "events"])
@pytest.mark.parametrize("name", RESPONSES)
def test_the_input_of_a_response_is_let_go(
    running: Running, decoding: DecodeGate, name: str, stream: bool
) -> None:
    body = {"model": "characters", "input": "a", "max_output_tokens": 1000, "stream": stream}
    with send(running, "/v1/responses", body | RESPONSES[name]):
        decoding.check()


# Of inferences with a long text.
PARAMETERS: list[dict[str, Any]] = [
    {},
    {"triton_note": "x" * SIZE},
    {"sequence_id": "a", "sequence_start": True, "sequence_end": True},
]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=["text", "parameter", "sequence"])
def test_the_tensors_of_an_inference_are_let_go(
    running: Running, decoding: DecodeGate, parameters: dict[str, Any]
) -> None:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["x" * SIZE]}
    body = {"inputs": [tensor], "parameters": {"max_tokens": 1000} | parameters}
    data = json.dumps(body).encode()
    head = b"POST /v2/models/words/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    connection = connect(running[0], head % len(data) + data)
    del tensor, body, data
    with connection:
        decoding.check()


def test_the_message_of_a_call_is_let_go(running: Running, decoding: DecodeGate) -> None:
    request = proto.ModelInferRequest(model_name="words")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    request.inputs[0].contents.bytes_contents.append(b"x" * SIZE)
    request.parameters["max_tokens"].int64_param = 1000
    check_call(running, decoding, request)


def test_the_message_of_a_forecast_is_let_go(running: Running, decoding: DecodeGate) -> None:
    request = proto.ModelInferRequest(model_name="forecaster")
    request.inputs.add(name="features", datatype="FP32", shape=[STEPS, WIDTH])
    request.raw_input_contents.append(bytes(4 * STEPS * WIDTH))
    request.parameters["steps_ahead"].int64_param = 1
    check_call(running, decoding, request)


def check_call(running: Running, decoding: DecodeGate, request: Any) -> None:
    data = message(request.SerializeToString())
    request.Clear()
    assert running[1].grpc is not None
    with RawClient(running[1].grpc.port) as client:
        call = client.call(INFER)
        while data:
            data = data[client.send(call, data, end=True) :]
            client.read(0.01)
        decoding.check()
