"""No piece of input holds up the event loop, or all threads, whatever route it comes by.

Pieces are bounded by their numbers (`test_parts`, `test_long_json`, `test_pieces`), to about 50 ms
each; this asks all routes for the largest ones, and grants five times as much to a slow machine.
"""

import json
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import websockets.sync.client as websockets
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Punctuation, Sequence, WhitespaceSplit
from tritonclient.grpc import service_pb2 as proto

from sruserve.server.http.json_limits import MAX_JSON_CONTAINERS, MOST_VALUES
from tests.server.beats import Beats, beating
from tests.server.conftest import Serve
from tests.server.http.test_clients_that_leave import until
from tests.support import save_random_model

GRANTED_SECONDS = 1.0  # a busy machine adds to what it should be, 0.05; the faults were 1 to 4
Server = tuple[str, int, str, Beats]


@pytest.fixture(scope="module")
def server(
    serve: Serve, folders: Path, task_folders: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Its host, its port, its address for gRPC, and its beats."""
    marks = Tokenizer(WordLevel({"<oov>": 0, ":": 1}, unk_token="<oov>"))
    marks.pre_tokenizer = Sequence([WhitespaceSplit(), Punctuation()])
    folder = tmp_path_factory.mktemp("marks") / "marks"
    given: dict[str, Any] = {"vocabulary": marks.to_str().encode(), "vocab_size": 2}
    save_random_model(folder, "classify", labels=("a", "b"), **given)
    paths = [folder]
    paths += [folders / name for name in ("sensor", "characters", "words", "ids")]
    paths += [task_folders / name for name in ("letters", "tagger", "encoder", "pairs")]
    with (
        beating() as beats,
        serve(model_folders=tuple(paths), grpc_port=0) as (client, application),
    ):
        until(lambda: client.get("/readyz").is_success)
        assert application.grpc is not None
        url = client.base_url
        yield url.host, url.port or 0, f"127.0.0.1:{application.grpc.port}", beats


def words(characters: int) -> str:
    """Different words, none of which was seen before."""
    random = Random()
    found: list[str] = []
    while sum(map(len, found)) < characters:
        found += [random.randbytes(4).hex() + " " for _ in range(1000)]
    return "".join(found)


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


COLONS, ROWS = ":" * 400_000, [[0.123456789] * 8] * (MOST_VALUES // 8 - 9)
ECHO = {
    "model": "characters",
    "prompt": words(8000),
    "echo": True,
    "logprobs": 5,
    "max_tokens": 1,
}
LONG: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a word without end": ("/v1/classify", lambda: body(model="marks", input=COLONS)),
    "words": ("/v1/classify", lambda: body(model="marks", input=words(300_000))),
    "short words on the loop": ("/v1/classify", lambda: body(model="marks", input=words(8000))),
    "many texts": (
        "/v1/classify", lambda: body(model="marks", input=[words(300)[:300]] * 1000)
    ),
    "pairs": (
        "/v1/classify",
        lambda: body(model="pairs", input=["a b"] * 500, pair=[words(200)[:200]] * 500),
    ),
    "features": ("/v1/classify", lambda: body(model="sensor", features=ROWS)),
    "ids": ("/v1/score", lambda: body(model="ids", input=[7] * (MOST_VALUES - 1))),
    "lists": ("/v1/score", lambda: body(model="ids", input=[[1, 2]] * (MAX_JSON_CONTAINERS - 2))),
    "brackets": ("/v1/score", lambda: b'{"model":"ids","input":[' + b"[]," * 2_700_000 + b"[]]}"),
    "escapes": ("/v1/score", lambda: b'{"model":"characters","input":"' + rb"\u20ac," * 1_100_000),
    "quotes": ("/v1/score", lambda: b'{"model":"characters","input":"' + rb'\"\\[,' * 1_300_000),
    "labels of letters": ("/v1/tag", lambda: body(model="letters", input=words(60_000))),
    "labels of words": ("/v1/tag", lambda: body(model="tagger", input=words(100_000))),
    "outputs": ("/v1/encode", lambda: body(model="encoder", features=ROWS)),
    "log-probabilities": ("/v1/completions", lambda: body(**ECHO)),
    "events of log-probabilities": ("/v1/completions", lambda: body(**ECHO, stream=True)),
    "predict": ("/predict?model=marks", lambda: body(inputs=[words(300)[:300]] * 1000)),
    "predict, cut": (
        "/predict?model=marks", lambda: body(inputs=COLONS, truncate=True)
    ),
    "numbers for KServe": (
        "/v2/models/encoder/infer",
        lambda: body(
            inputs=[{"name": "features", "shape": [len(ROWS), 8], "datatype": "FP32", "data": ROWS}]
        ),
    ),
}  # fmt: skip


def ask(server: Server, path: str, content: bytes, *headers: str) -> int:
    """Send a request, and read its reply to the end; its status."""
    host, port, _, _ = server
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(content)}"]
    head = "\r\n".join([*lines, *headers, "connection: close", "", ""])
    with socket.create_connection((host, port), 60) as connection:
        connection.sendall(head.encode() + content)
        first = connection.recv(1 << 16)
        while connection.recv(1 << 20):
            pass
    return int(first.split()[1])


def check_beats(server: Server, ask: Callable[[], object]) -> None:
    beats = server[3]
    beats.reset()
    ask()
    loop, lock = beats.loop, beats.lock
    assert loop < GRANTED_SECONDS, f"the loop stood still for {loop:.3f} s"
    assert lock < GRANTED_SECONDS, f"all threads stood still for {lock:.3f} s"


@pytest.mark.parametrize("name", LONG)
def test_a_long_request_misses_no_beats(server: Server, name: str) -> None:
    path, make = LONG[name]
    content = make()
    status = {"brackets": 422, "lists": 422, "escapes": 400, "quotes": 400}.get(name, 200)
    check_beats(server, lambda: expect(status, ask(server, path, content)))


def expect(expected: int, status: int) -> None:
    assert status == expected


@pytest.mark.parametrize("model", ["sensor", "encoder", "ids", "marks"])
def test_binary_tensors_miss_no_beats(server: Server, model: str) -> None:
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
        check_beats(server, lambda: expect(200, ask(server, path, head + data, length)))
    message = proto.ModelInferRequest(model_name=model, raw_input_contents=[data])
    message.inputs.add(name=name, datatype=kind, shape=shape)
    if model == "ids":
        message.parameters["max_tokens"].int64_param = 1
    given = message.SerializeToString()
    with grpc.insecure_channel(server[2], [("grpc.max_receive_message_length", -1)]) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        check_beats(server, lambda: call(given, timeout=60))


def test_a_step_of_a_stream_misses_no_beats(server: Server) -> None:
    host, port, _, _ = server
    with httpx.Client(base_url=f"http://{host}:{port}", verify=False) as client:
        stream = client.post("/v1/streams", json={"model": "marks"}).json()["id"]
    content = body(step=1, input=words(300_000))
    path = f"/v1/streams/{stream}/steps"
    check_beats(server, lambda: expect(200, ask(server, path, content)))


def test_frames_of_a_socket_miss_no_beats(server: Server) -> None:
    host, port, _, _ = server
    frames = [
        body(model="characters", input=words(300_000)).decode(),
        body(prompt=words(8000), echo=True, logprobs=5, max_tokens=1).decode(),
        '{"input":[' + "[]," * 2_000_000 + "[]]}",
    ]
    url = f"ws://{host}:{port}/v1/stream"
    with websockets.connect(url, compression=None, max_size=None) as connection:
        for frame in frames:
            connection.send(frame)  # the client masks it in this process
            check_beats(server, lambda: connection.recv(timeout=60))
