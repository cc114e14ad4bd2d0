"""The longest requests of all routes are answered, or refused for what they are.

That they hold up nobody else, `bench.serve` measures.
"""

import socket
import struct
from collections.abc import Iterator

import grpc
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as proto

from bench.serve.long_requests import LONG, REFUSED, body, save_models, words
from tests.server.conftest import Serve
from tests.server.observing import until
from tests.server.websocket.sockets import SECONDS, open_socket

Server = tuple[str, int, str]


@pytest.fixture(scope="module")
def server(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its host, its port, and its address for gRPC."""
    folders = save_models(tmp_path_factory.mktemp("models"))
    with serve(model_folders=tuple(folders), grpc_port=0) as (client, application):
        until(lambda: client.get("/readyz").is_success)
        assert application.grpc is not None
        url = client.base_url
        yield url.host, url.port or 0, f"127.0.0.1:{application.grpc.port}"


def ask(server: Server, path: str, content: bytes, *headers: str) -> int:
    """Send a request, and read its reply to the end; its status."""
    host, port, _ = server
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(content)}"]
    head = "\r\n".join([*lines, *headers, "connection: close", "", ""])
    with socket.create_connection((host, port), 60) as connection:
        connection.sendall(head.encode() + content)
        first = connection.recv(1 << 16)
        while connection.recv(1 << 20):
            pass
    return int(first.split()[1])


@pytest.mark.parametrize("name", LONG)
def test_a_long_request_is_answered(server: Server, name: str) -> None:
    path, make = LONG[name]
    assert ask(server, path, make()) == REFUSED.get(name, 200)


@pytest.mark.parametrize("model", ["sensor", "encoder", "ids", "marks"])
def test_long_binary_tensors_are_answered(server: Server, model: str) -> None:
    if model == "marks":
        name, kind, shape, data = (
            "text",
            "BYTES",
            [1, 1],
            struct.pack("<I", 300_000) + b":" * 300_000,
        )
    elif model == "ids":
        name, kind, shape = "input_ids", "INT64", [300_000]
        data = np.full(300_000, 7).tobytes()
    else:
        steps = 60_000 if model == "sensor" else 10_000  # whose outputs are three times as many
        name, kind, shape = "features", "FP32", [steps, 8]
        data = np.ones((steps, 8), np.float32).tobytes()
    tensor = {"name": name, "shape": shape, "datatype": kind}
    head = body(inputs=[tensor | {"parameters": {"binary_data_size": len(data)}}])
    if model != "ids":
        length = f"inference-header-content-length: {len(head)}"
        path = f"/v2/models/{model}/infer"
        assert ask(server, path, head + data, length) == 200
    message = proto.ModelInferRequest(model_name=model, raw_input_contents=[data])
    message.inputs.add(name=name, datatype=kind, shape=shape)
    if model == "ids":
        message.parameters["max_tokens"].int64_param = 1
    serialized = message.SerializeToString()
    with grpc.insecure_channel(server[2], [("grpc.max_receive_message_length", -1)]) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        assert call(serialized, timeout=60)


def test_a_long_step_of_a_stream_is_answered(server: Server) -> None:
    host, port, _ = server
    with httpx.Client(base_url=f"http://{host}:{port}", verify=False, timeout=60) as client:
        stream = client.post("/v1/streams", json={"model": "marks"}).json()["id"]
    content = body(step=1, input=words(300_000))
    path = f"/v1/streams/{stream}/steps"
    assert ask(server, path, content) == 200


def test_long_frames_of_a_socket_are_answered(server: Server) -> None:
    host, port, _ = server
    frames = [
        body(model="characters", input=words(300_000)).decode(),
        body(prompt=words(8000), echo=True, logprobs=5, max_tokens=1).decode(),
        '{"input":[' + "[]," * 2_000_000 + "[]]}",
    ]
    client = httpx.Client(base_url=f"http://{host}:{port}", verify=False)
    with client, open_socket(client, max_size=None) as connection:
        for frame in frames:
            connection.send(frame)
            assert connection.recv(timeout=SECONDS)
