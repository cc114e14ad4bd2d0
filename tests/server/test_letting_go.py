"""A completion that runs holds nothing long of its request: what was read of it is let go."""

import gc
import json
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tritonclient.grpc import service_pb2 as proto

from sruserve.server.app import Application
from sruserve.server.engine.model_runner import ModelRunner
from tests.server.conftest import Serve
from tests.server.http.raw_requests import UPGRADE, connect, frame
from tests.server.kserve.grpc_inputs import INFER
from tests.server.kserve.raw_http2 import RawClient, message
from tests.server.observing import until

Running = tuple[httpx.Client, Application]

SIZE = 200_000  # of what is long in a request
LONG = SIZE // 2


@pytest.fixture(scope="module")
def running(serve: Serve) -> Iterator[Running]:
    with serve("characters", "words", max_input_bytes=2 * SIZE, grpc_port=0) as running:
        yield running


class Decoding:
    """Streams that decode wait until `go_on` is set. waits: one does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits, self.go_on = threading.Event(), threading.Event()
        step = ModelRunner.step

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
def decoding(running: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[Decoding]:
    gate = Decoding(monkeypatch)
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
    client, _ = running
    body: dict[str, Any] = {"model": "characters", "prompt": "a", "max_tokens": 1000} | fields
    if route == "events":
        route, body["stream"] = "/v1/completions", True
    elif route == "/v1/streams":
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
def test_a_body_is_let_go_when_it_is_read(running: Running, decoding: Decoding, route: str) -> None:
    with complete(running, route, {}, SIZE):
        decoding.check()


@pytest.mark.parametrize("fields", LONG_FIELDS, ids=["text", "ids", "word", "allowed"])
@pytest.mark.parametrize("route", ROUTES)
def test_a_long_field_is_let_go_when_its_job_is_queued(
    running: Running, decoding: Decoding, route: str, fields: dict[str, Any]
) -> None:
    with complete(running, route, fields):
        decoding.check()


@pytest.mark.parametrize("field", ["user", "metadata", "service_tier", "safety_identifier"])
def test_a_field_that_is_ignored_is_let_go(
    running: Running, decoding: Decoding, field: str
) -> None:
    with complete(running, "events", {field: ["x" * SIZE]}):
        decoding.check()


# Of inferences with a long text.
PARAMETERS: list[dict[str, Any]] = [
    {},
    {"triton_note": "x" * SIZE},
    {"sequence_id": "a", "sequence_start": True, "sequence_end": True},
]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=["text", "parameter", "sequence"])
def test_the_tensors_of_an_inference_are_let_go(
    running: Running, decoding: Decoding, parameters: dict[str, Any]
) -> None:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["x" * SIZE]}
    body = {"inputs": [tensor], "parameters": {"max_tokens": 1000} | parameters}
    data = json.dumps(body).encode()
    head = b"POST /v2/models/words/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    connection = connect(running[0], head % len(data) + data)
    del tensor, body, data
    with connection:
        decoding.check()


def test_the_message_of_a_call_is_let_go(running: Running, decoding: Decoding) -> None:
    request = proto.ModelInferRequest(model_name="words")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    request.inputs[0].contents.bytes_contents.append(b"x" * SIZE)
    request.parameters["max_tokens"].int64_param = 1000
    data = message(request.SerializeToString())
    del request
    assert running[1].grpc is not None
    with RawClient(running[1].grpc.port) as client:
        call = client.call(INFER)
        while data:
            data = data[client.send(call, data, end=True) :]
            client.read(0.01)
        decoding.check()
