"""The lines of a server under all kinds of requests: complete, JSON, and without any secret."""

import json
import re
import secrets
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException
from websockets.exceptions import WebSocketException

from tests.server.keys import bearer
from tests.server.kserve.grpc_inputs import texts
from tests.server.observation.clients import GENERATING, ROUTES
from tests.server.observation.json_server import JsonServer, json_server
from tests.server.observing import until
from tests.server.websocket.sockets import open_socket

DOCUMENT = (Path(__file__).parents[3] / "docs" / "logs-and-traces.md").read_text()
SECRET = "sesame-is-secret"
KEY = f"key-{SECRET}"
STATE_KEYS = "5e" * 32
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
UUID = "0b5cfbd5-2f0e-4f4d-9b0e-d5a7c3a1e0f2"
# A server with a mistake: the tokenizer fails on a text, and says which.
FAILING = """
import sys
from sruserve.server.tasks import texts
read = texts.encode_input
def encode_input(served, content, *more):
    if "mistake" in content:
        {}[content]
    return read(served, content, *more)
texts.encode_input = encode_input
from sruserve.cli import main
main()
"""


@pytest.fixture(scope="module")
def server(
    folders: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[httpx.Client, JsonServer, str]]:
    models = folders / "question", folders / "characters"
    settings: dict[str, Any] = {
        "api_keys": f"acme:{KEY}",
        "state_keys": STATE_KEYS,
        "grpc_port": "0",
    }
    folder = tmp_path_factory.mktemp("logged")
    with json_server(folder, *models, program=("-c", FAILING), access_log="true", **settings) as (
        client,
        running,
    ):
        rpc = "127.0.0.1:" + running.logged(r"gRPC is on \S+ port (\d+)")
        client.headers.update(bearer(KEY))
        yield client, running, rpc


Server = tuple[httpx.Client, JsonServer, str]


def settled(client: httpx.Client, server: JsonServer) -> int:
    """The number of lines, once those of all requests so far are there."""
    trace = secrets.token_hex(16)
    client.get("/v1/models", headers={"traceparent": f"00-{trace}-{SPAN}-01"})
    until(lambda: any(line["trace_id"] == trace for line in server.requests))
    return len(server.requests)


def new_lines(server: JsonServer, before: int, count: int) -> list[dict[str, Any]]:
    """The lines of the last requests, once they are there."""
    until(lambda: len(server.requests) >= before + count)
    lines = server.requests[before:]
    assert len(lines) == count
    return lines


@pytest.mark.parametrize("name", ROUTES)
def test_every_protocol_writes_one_line_for_a_request(server: Server, name: str) -> None:
    client, running, rpc = server
    ask, span_name = ROUTES[name]
    before = settled(client, running)
    headers = bearer(KEY) | {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    ask(client, rpc, "who what", headers)
    lines = new_lines(running, before, 2 if name in ("step", "talk") else 1)
    line, generates = lines[-1], name in GENERATING
    assert line["route"].removeprefix("/") == span_name.split()[-1].removeprefix("/")
    assert line["protocol"] == {"infer_rpc": "grpc", "talk": "websocket"}.get(name, "http")
    assert line["status"] == {"infer_rpc": "OK", "talk": None}.get(name, 200)
    assert line["method"] == (None if name in ("infer_rpc", "talk") else "POST")
    assert line["model"] == ("characters" if generates else "question")
    assert (line["level"], line["outcome"], line["error"]) == ("info", "ok", None)
    assert line["trace_id"] == TRACE
    assert line["worker"] == running.process.pid
    assert line["seconds"] > line["queue_seconds"] > 0
    tokens = line["input_tokens"], line["output_tokens"]
    assert tokens == ((8, 5) if generates else (2, 0))
    assert (line["characters"] > 0) is generates


def test_the_id_of_a_line_is_the_reply_s(server: Server) -> None:
    client, running, _ = server
    body = {"model": "question", "input": "who"}
    for sent in ({}, {"x-request-id": UUID}, {"x-request-id": SECRET}):
        before = settled(client, running)
        reply = client.post("/v1/classify", json=body, headers=sent)
        (line,) = new_lines(running, before, 1)
        number = reply.json()["id"].removeprefix("cls-")
        assert line["request_id"] == (UUID if sent.get("x-request-id") == UUID else number)
        assert reply.headers["x-request-id"] == sent.get("x-request-id", number)


@pytest.mark.parametrize(
    ("method", "path", "body", "route", "status", "error"),
    [
        ("POST", "/v1/classify", {"input": ""}, "/v1/classify", 422, "empty_input"),
        ("POST", "/v1/classify", {"model": SECRET}, "/v1/classify", 404, "model_not_found"),
        ("GET", f"/v1/models/{SECRET}", None, "/v1/models/{model}", 404, "model_not_found"),
        ("GET", f"/{SECRET}", None, "none", 404, "route_not_found"),
        ("PUT", f"/v1/models?key={SECRET}", None, "none", 405, "method_not_allowed"),
        ("GET", f"/v2/models/{SECRET}", None, "/v2", 404, "model_not_found"),
    ],
)
def test_a_refused_request_has_a_line_with_the_code_of_its_error(
    server: Server, method: str, path: str, body: Any, route: str, status: int, error: str
) -> None:
    client, running, _ = server
    before = settled(client, running)
    reply = client.request(method, path, json=body and {"model": "question", **body})
    assert reply.status_code == status
    (line,) = new_lines(running, before, 1)
    assert (line["method"], line["route"], line["status"]) == (method, route, status)
    assert (line["outcome"], line["error"]) == ("invalid", error)
    assert line["model"] in ("unknown", "question")
    assert line["queue_seconds"] is None


def test_probes_and_metrics_have_no_lines(server: Server) -> None:
    client, running, _ = server
    before = settled(client, running)
    for path in ("/livez", "/readyz", "/health", "/metrics", "/v2/health/live"):
        assert client.get(path).status_code == 200
    client.get("/v1/models")
    (line,) = new_lines(running, before, 1)
    assert line["route"] == "/v1/models"


def test_a_mistake_of_the_server_is_one_line_with_its_stack_and_without_the_text(
    server: Server,
) -> None:
    client, running, _ = server
    before = settled(client, running)
    body = {"model": "question", "input": f"a mistake {SECRET}"}
    assert client.post("/v1/classify", json=body).status_code == 500
    (line,) = new_lines(running, before, 1)
    assert (line["level"], line["outcome"], line["error"]) == ("error", "error", "internal_error")
    until(lambda: any("exception" in each for each in running.lines))
    (failure,) = [each for each in running.lines if "exception" in each]
    assert failure["message"] == "a request failed unexpectedly"
    assert "in text_item" in failure["exception"]
    assert failure["exception"].endswith("\nKeyError")


@pytest.mark.parametrize(
    ("path", "body"), [("/tokenize", {"prompt": "who"}), ("/detokenize", {"tokens": [9, 10]})]
)
def test_a_request_that_computes_nothing_has_a_line_without_tokens(
    server: Server, path: str, body: dict[str, Any]
) -> None:
    client, running, _ = server
    before = settled(client, running)
    client.post(path, json={"model": "question"} | body, headers=bearer(KEY)).raise_for_status()
    (line,) = new_lines(running, before, 1)
    assert (line["route"], line["model"], line["status"]) == (path, "question", 200)
    assert (line["outcome"], line["input_tokens"], line["output_tokens"]) == ("ok", 0, 0)


def test_nothing_that_a_client_has_sent_is_in_a_line(server: Server) -> None:
    client, running, rpc = server
    names = ("x-request-id", "user-agent", "traceparent", "tracestate", "referer", SECRET)
    headers = dict.fromkeys(names, SECRET)
    state = client.post(
        "/v1/classify", json={"model": "question", "input": "who ", "return_state": True}
    ).json()["results"][0]["state"]
    breaking = f'a\r\n{{"level":"{SECRET}"}}\u2028\x1b[31m'
    for path in (
        *("/v1/classify", "/v1/completions", "/predict", f"/v1/{SECRET}", f"/%0d%0a{SECRET}"),
        *("/v1/embeddings", "/v1/responses", "/tokenize", "/detokenize"),
        *(f"/v1/streams/{SECRET}/steps", f"/v1/streams/{state[:60]}/steps"),
    ):
        for body in (
            {"model": "question", "input": SECRET, "prompt": SECRET, "inputs": SECRET, "step": 1},
            {"model": breaking, "input": SECRET, "prompt": SECRET, "inputs": SECRET},
            {"model": "question", "input": SECRET, "state": state},
            {"model": "question", "input": "who", "state": SECRET},
            {"model": "question", "input": "who", "preset": SECRET},
            {"model": "characters", "prompt": SECRET, "regex": f"({SECRET}"},
            {"model": "characters", "prompt": SECRET, "json_schema": {"const": SECRET}},
            {"model": "characters", "prompt": SECRET, "stop": SECRET, "stream": True},
            {SECRET: SECRET, "model": "question", "input": SECRET},
            {"model": "question", "input": SECRET, "encoding_format": "base64"},
            {"model": "question", "prompt": SECRET, "return_token_strs": True},
            {"model": "question", "tokens": [1, 2]},
            {"model": "characters", "input": SECRET, "instructions": SECRET, "stream": True},
            {"model": "characters", "input": [{"role": "user", "content": [{"type": SECRET}]}]},
            {"model": "characters", "input": SECRET, "previous_response_id": f"resp_{SECRET}"},
            {"model": "characters", "input": "a", "previous_response_id": f"resp_{state}"},
            [SECRET],
        ):
            client.post(path, json=body, params={SECRET: SECRET}, headers=headers)
    for method, path in (
        ("DELETE", f"/v1/streams/{SECRET}"),
        ("GET", f"/v2/models/{SECRET}/ready"),
        ("POST", f"/v2/repository/models/{SECRET}/load"),
    ):
        client.request(method, path, headers=headers)
    client.get("/v1/models", headers=bearer(f"wrong-{SECRET}"))
    client.get("/v1/models", headers={"origin": f"http://{SECRET}.example"})
    client.post("/v1/classify", content=SECRET, headers=headers)
    _break_http(client)
    _break_sockets(client, state)
    _break_rpc(rpc, state)
    settled(client, running)
    assert running.lines  # all of them are JSON
    output = running.output
    assert len(running.requests) > 70
    for secret in (SECRET, STATE_KEYS, state[:40], state[60:100], "\x1b", "\r", "\u2028"):
        assert secret not in output, secret


def _break_http(client: httpx.Client) -> None:
    """Requests that are not HTTP."""
    for data in (
        f"GET /{SECRET} {SECRET}\r\n\r\n",
        f"{SECRET}\r\n\r\n",
        f"GET /{SECRET} HTTP/1.1\r\n{SECRET}\r\n\r\n",
        f"BREW /{SECRET} HTTP/1.1\r\nhost: {SECRET}\r\n\r\n",
    ):
        address = client.base_url.host, client.base_url.port or 0
        with socket.create_connection(address, 60) as line, suppress(OSError):
            line.sendall(data.encode())
            line.shutdown(socket.SHUT_WR)
            while line.recv(4096):
                pass


def _break_sockets(client: httpx.Client, state: str) -> None:
    headers = bearer(KEY) | {"x-secret": SECRET, "traceparent": SECRET}
    for frames in (
        [{"model": SECRET}],
        [{"model": "question", "input": SECRET, "id": SECRET}, {"op": SECRET}, {"op": "state"}],
        [{"model": "question", "state": state, "input": SECRET}, {SECRET: SECRET}],
        [{"model": "question", "input": f"a mistake {SECRET}"}],
    ):
        with open_socket(client, additional_headers=headers) as connection:
            for frame in frames:
                connection.send(json.dumps(frame))
                connection.recv()
            connection.send(SECRET)
            connection.recv()
    with suppress(WebSocketException), open_socket(client, additional_headers=bearer(SECRET)):
        pass


def _break_rpc(rpc: str, state: str) -> None:
    with triton.InferenceServerClient(rpc) as connection:
        for model, text, parameters, metadata in (
            ("question", SECRET, {}, bearer(KEY)),
            ("question", f"a mistake {SECRET}", {}, bearer(KEY)),
            (SECRET, SECRET, {}, bearer(KEY)),
            ("question", SECRET, {"sru_state": state}, bearer(KEY)),
            ("question", SECRET, {"sru_state": SECRET}, bearer(KEY)),
            ("question", SECRET, {SECRET: SECRET}, bearer(KEY)),
            ("question", SECRET, {}, bearer(SECRET)),
        ):
            with suppress(InferenceServerException):
                connection.infer(
                    model, [texts(triton, "text", text)], parameters=parameters, request_id=SECRET,
                    headers=metadata | {"x-secret": SECRET, "traceparent": SECRET},
                )  # fmt: skip
        with suppress(InferenceServerException):
            connection.get_model_metadata(SECRET, headers=bearer(KEY))


def test_the_documentation_has_every_field_and_an_example_of_a_line(server: Server) -> None:
    client, running, _ = server
    before = settled(client, running)
    client.get("/v1/models")
    (line,) = new_lines(running, before, 1)
    table = DOCUMENT.partition("| Field |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(line)
    (example,) = re.findall(r'^\{"time".*"request".*\}$', DOCUMENT, re.MULTILINE)
    assert list(json.loads(example)) == list(line)


def test_the_last_requests_before_a_stop_have_their_lines(server: Server) -> None:
    client, running, _ = server
    before = settled(client, running)
    for _ in range(20):
        client.post("/v1/classify", json={"model": "question", "input": "who"})
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(60) == 0
    assert len(running.requests) == before + 20
    messages = [line["message"] for line in running.lines]
    assert any(message.startswith("stopping; running requests") for message in messages)
