"""Hostile bytes: refused in one of the documented ways, and the server is afterwards as before."""

import asyncio
import base64
import contextlib
import gzip
import json
import os
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest
import websockets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sruserve.server.app import Application
from tests import preloaded
from tests.preloaded import ROOT
from tests.server.conftest import Serve
from tests.server.observing import metric, until

INFER = "/v2/models/characters/infer"
GRPC_INFER = "/inference.GRPCInferenceService/ModelInfer"
ANSWERS = (
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
)
GOOD = {"model": "characters", "prompt": "To be", "max_tokens": 20, "seed": 3, "logprobs": 1}
few = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def running(serve: Serve) -> Iterator[tuple[httpx.Client, Application]]:
    names = ("question", "characters", "other")
    with serve(*names, grpc_port=0, max_body_bytes=1 << 20) as started:
        yield started


@pytest.fixture(scope="module")
def impatient(serve: Serve) -> Iterator[tuple[httpx.Client, Application]]:
    """A server that waits a second for its clients."""
    with serve("characters", keep_alive_seconds=1, receive_grace_seconds=1) as started:
        yield started


@pytest.fixture(scope="module")
def client(running: tuple[httpx.Client, Application]) -> httpx.Client:
    return running[0]


@pytest.fixture(autouse=True)
def unharmed(running: tuple[httpx.Client, Application]) -> Iterator[None]:
    """Around each test: the same answer, and no row, connection or counted byte that is left."""
    client, application = running
    process, engine = (
        psutil.Process(),
        application.lifecycle.catalogue.with_states("characters").engine,
    )
    limits = application.limits
    before, files = good(client), process.num_fds()
    yield
    assert good(client) == before
    until(lambda: engine.rows == 0 and engine.running == 0)
    until(lambda: process.num_fds() <= files + 8)
    until(lambda: not any(each.used for each in (limits.reading, limits.steps, limits.replies)))
    until(lambda: application.lifecycle.active == 0)


def good(client: httpx.Client) -> Any:
    reply = client.post("/v1/completions", json=GOOD)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"]


def token(client: httpx.Client, model: str = "characters", text: str = "To be") -> str:
    body = {"model": model, "input": text, "return_state": True}
    state: str = client.post("/v1/score", json=body).json()["results"][0]["state"]
    return state


def steps(client: httpx.Client) -> float:
    return metric(client, 'sru_step_seconds_count{model="characters"}')


def tokens_sent(client: httpx.Client, value: str) -> list[tuple[int, Any]]:
    """The status and the code of every route that takes a state."""
    bodies = {
        "/v1/score": {"model": "characters", "input": "a", "state": value},
        "/v1/completions": {"model": "characters", "prompt": "a", "state": value},
        "/v1/streams": {"model": "characters", "state": value},
    }
    outcomes: list[tuple[int, Any]] = []
    for path, body in bodies.items():
        reply = client.post(path, json=body)
        outcomes.append((reply.status_code, reply.json()["error"]["code"]))
    outcomes.append((422, over_socket(client, value)))
    return outcomes


def over_socket(client: httpx.Client, value: str) -> str:
    """The code of the answer to a first frame with a state."""

    async def talk() -> str:
        url = f"ws://{client.base_url.netloc.decode()}/v1/stream"
        async with websockets.connect(url, open_timeout=60, ping_interval=None) as connection:
            await connection.send(json.dumps({"model": "characters", "state": value, "input": "a"}))
            error_code: str = json.loads(await connection.recv())["error"]["code"]
            return error_code

    return asyncio.run(talk())


def infer_body(**parameters: Any) -> dict[str, Any]:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}
    return {"inputs": [tensor], "parameters": {"max_tokens": 1, **parameters}}


def test_a_wrong_token_never_reaches_a_model(client: httpx.Client) -> None:
    mine, longer, foreign = token(client), token(client, text="x" * 99), token(client, "other")
    half = len(mine) // 2
    computed = steps(client)

    @few
    @given(
        value=st.one_of(
            st.tuples(st.integers(0, len(mine) - 1), st.sampled_from("AZaz09-_.=+ \0é")).map(
                lambda change: mine[: change[0]] + change[1] + mine[change[0] + 1 :]
            ),
            st.integers(0, len(mine) - 1).map(lambda length: mine[:length]),
            st.integers(1, len(mine)).map(lambda cut: mine[:cut] + longer[cut:]),
            st.binary(max_size=200).map(lambda data: base64.urlsafe_b64encode(data).decode()),
            st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
            st.sampled_from([foreign, mine + mine, mine[half:] + mine[:half], " " + mine]),
        ).filter(lambda value: value not in (mine, longer))
    )
    def refuse(value: str) -> None:
        for status, code in tokens_sent(client, value):
            assert 400 <= status < 500
            assert code.startswith("state_"), code
        for more in ({}, {"sequence_id": 7, "sequence_start": True}):
            reply = client.post(INFER, json=infer_body(sru_state=value, **more))
            assert 400 <= reply.status_code < 500, reply.text

    refuse()
    assert steps(client) == computed


def binary_body() -> tuple[bytes, int]:
    text = struct.pack("<I", 5) + b"To be"
    parameters = {"binary_data_size": len(text)}
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "parameters": parameters}
    head = json.dumps(
        {"inputs": [tensor], "parameters": {"max_tokens": 1, "binary_data_output": True}}
    ).encode()
    return head + text, len(head)


def changed(data: bytes) -> st.SearchStrategy[bytes]:
    """The same with some bytes changed, or cut, or longer."""

    def change(at: list[tuple[int, int]], end: int, more: bytes) -> bytes:
        new = bytearray(data)
        for place, byte in at:
            new[place] = byte
        return bytes(new[:end]) + more

    places = st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255))
    ends = st.one_of(st.just(len(data)), st.integers(0, len(data)))
    return st.builds(change, st.lists(places, max_size=4), ends, st.binary(max_size=8))


@few
@given(
    body=changed(binary_body()[0]),
    length=st.one_of(
        st.just(str(binary_body()[1])),
        st.integers(-2, 2**70).map(str),
        st.sampled_from(["x", "0x9", "9 9"]),
    ),
    encoding=st.sampled_from(["", "gzip", "deflate", "br", "gzip, gzip"]),
    packed=st.booleans(),
)
def test_a_binary_body_is_answered_or_refused(
    client: httpx.Client, body: bytes, length: str, encoding: str, packed: bool
) -> None:
    if packed:
        body = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
    headers = {"inference-header-content-length": length, "content-encoding": encoding}
    reply = client.post(INFER, content=body, headers=headers)
    assert reply.status_code == 200 or 400 <= reply.status_code < 500, reply.text


@pytest.mark.parametrize(
    "shape", [[2**62, 4], [0, 2**62], [2**63 - 1] * 16, [1] * 17, [-1, 1], [1, 1.5], ["1"], [[1]]]
)
@pytest.mark.parametrize("size", [0, 4, 9, 2**31, 2**63, -1])
def test_shapes_and_sizes_that_cannot_be_are_refused(
    client: httpx.Client, shape: Any, size: int
) -> None:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": shape}
    tensor["parameters"] = {"binary_data_size": size}
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = {"inference-header-content-length": str(len(head))}
    reply = client.post(INFER, content=head + struct.pack("<I", 5) + b"To be", headers=headers)
    assert 400 <= reply.status_code < 500


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_bodies_that_unpack_without_end_are_refused(
    client: httpx.Client, pack: Callable[[bytes], bytes]
) -> None:
    bomb = pack(bytes(100 << 20))
    name = "gzip" if pack is gzip.compress else "deflate"
    for _ in range(20):
        reply = client.post(INFER, content=bomb, headers={"content-encoding": name})
        assert reply.status_code == 413


def test_bytes_that_are_no_grpc_message_are_the_clients_fault(
    running: tuple[httpx.Client, Application],
) -> None:
    from tritonclient.grpc import service_pb2 as proto

    _, application = running
    assert application.grpc is not None
    message = proto.ModelInferRequest(model_name="characters")
    message.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    message.raw_input_contents.append(struct.pack("<I", 5) + b"To be")
    message.parameters["max_tokens"].int64_param = 1
    fine = message.SerializeToString()

    with grpc.insecure_channel(f"127.0.0.1:{application.grpc.port}") as channel:

        @few
        @given(data=st.one_of(changed(fine), st.binary(max_size=200)))
        def ask(data: bytes) -> None:
            call = channel.unary_unary(GRPC_INFER).future(data, timeout=60)
            assert call.code() in ANSWERS, call.details()

        ask()


UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
)


def send(
    client: httpx.Client, data: bytes, wait_seconds: float = 0.05, *, replied: bool = False
) -> bytes:
    """What a connection says to some bytes before it is silent, or closed.

    replied: there is a reply, however long it takes.
    """
    address = (client.base_url.host, client.base_url.port or 0)
    with socket.create_connection(address, timeout=60) as connection:
        reply = b""
        with contextlib.suppress(OSError):  # hung up on before all was sent; the reply has come
            connection.sendall(data)
        with contextlib.suppress(OSError):
            if replied:
                reply += connection.recv(65536)
            connection.settimeout(wait_seconds)
            while part := connection.recv(65536):
                reply += part
        return reply


def frame(opcode: int, data: bytes, *, fin: bool = True, masked: bool = True) -> bytes:
    head = bytes([fin << 7 | opcode, masked << 7 | min(len(data), 126)])
    if len(data) > 125:
        head += struct.pack(">H", len(data))
    return head + (bytes(4) if masked else b"") + data  # a mask of zeros changes nothing


frames = st.one_of(
    st.binary(max_size=60),
    st.builds(
        frame,
        st.integers(0, 15),
        st.one_of(st.binary(max_size=200), st.just(b'{"model":"characters","input":"a"}')),
        fin=st.booleans(),
        masked=st.booleans(),
    ),
    st.sampled_from([b"\x82\xff" + b"\x7f" * 8, b"\x82\xff" + b"\xff" * 8, b"\x81\xfe\xff\xff"]),
)


@few
@given(sent=st.lists(frames, max_size=6))
def test_any_bytes_after_a_handshake_are_answered_or_closed(
    client: httpx.Client, sent: list[bytes]
) -> None:
    reply = send(client, UPGRADE + b"".join(sent), replied=True)
    assert reply.startswith(b"HTTP/1.1 101 ")
    assert b"internal_error" not in reply


@few
@given(
    method=st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH"]),
    path=st.lists(
        st.sampled_from(
            ["v1", "v2", "streams", "models", "infer", "classify", "..", "%2e%2e", "%00", "", "%ff",
             "a" * 3000, "docs", "assets", "steps", "repository", "load", "versions", "9" * 30]
        ), max_size=6
    ).map(lambda parts: "/" + "/".join(parts)),
    header=st.sampled_from(
        [b"authorization: Bearer \xff\xfe", b"authorization: " + b"B" * 9000, b"x-request-id: \xff",
         b"content-encoding: \xe9", b"accept-encoding: gzip;q=\xff", b"expect: 100-continue"]
    ),
    body=st.sampled_from(
        [b"content-length: 2\r\n\r\n{}", b"content-length: -1\r\n\r\n",
         b"content-length: 1\r\n\r\n{}",
         b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: y\r\n\r\n",
         b"transfer-encoding: chunked\r\n\r\nzz\r\n", b"content-length: 9\r\n\r\n{}"]
    ),
)  # fmt: skip
def test_any_path_header_and_framing_is_answered_without_a_fault(
    client: httpx.Client, method: str, path: str, header: bytes, body: bytes
) -> None:
    reply = send(
        client, f"{method} {path} HTTP/1.1\r\nhost: x\r\n".encode() + header + b"\r\n" + body
    )
    assert not reply.startswith(b"HTTP/1.1 5") or reply.startswith(b"HTTP/1.1 501"), reply[:300]


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET / HTTP/1.1\r\nx: ", b"a" * 1000),
        (b"GET / HTTP/1.1\r\n", b"x: y\r\n" * 100),
        (b"GET /", b"a" * 1000),
        (
            b"POST /v1/score HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
            b"x: y\r\n" * 100,
        ),
    ],
    ids=["header", "headers", "path", "trailers"],
)
def test_a_head_without_an_end_is_cut_off(client: httpx.Client, begin: bytes, more: bytes) -> None:
    assert b"too long" in send(client, begin + more * 3000, 60)


@pytest.mark.parametrize(
    "begin", [b"", b"GET / HT", b"POST /v1/score HTTP/1.1\r\ncontent-length: 9\r\n\r\n{"]
)
def test_a_client_that_does_not_continue_is_hung_up_on(
    impatient: tuple[httpx.Client, Application], begin: bytes
) -> None:
    client, _ = impatient
    address = (client.base_url.host, client.base_url.port or 0)
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(begin)
        while connection.recv(4096):  # raises after a minute
            pass


def test_requests_that_are_sent_without_reading_wait_outside(client: httpx.Client) -> None:
    sent = 0
    address = (client.base_url.host, client.base_url.port or 0)
    with socket.create_connection(address) as connection:
        connection.setblocking(False)
        requests = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 1000
        try:
            while sent < 64 << 20:
                sent += connection.send(requests)
        except BlockingIOError:
            pass
    assert sent < 64 << 20


def test_thousands_of_bad_requests_leave_nothing(folders: Path) -> None:
    done = preloaded.run("-m", "tests.server.bad_requests", os.fspath(folders), folder=ROOT)
    left = json.loads(done.stdout or done.stderr)
    assert min(left["bytes"]) < 32_000, f"64 B a request: {left}"
    assert left["metrics"] < 2000
