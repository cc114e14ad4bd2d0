"""One request over each protocol, as its own clients send it, with headers of one's own."""

import json
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import httpx
import tritonclient.grpc as triton

from tests.server.kserve.grpc_inputs import texts
from tests.server.websocket.sockets import open_socket

Headers = Mapping[str, str]
Ask = Callable[[httpx.Client, str, str, Headers], None]
_ids = count(1)


def classify(client: httpx.Client, rpc: str, text: str, headers: Headers) -> None:
    body = {"model": "question", "input": text}
    client.post("/v1/classify", json=body, headers=headers).raise_for_status()


def complete(client: httpx.Client, rpc: str, text: str, headers: Headers) -> None:
    body = {"model": "characters", "prompt": text, "max_tokens": 5}
    client.post("/v1/completions", json=body, headers=headers).raise_for_status()


def stream(client: httpx.Client, rpc: str, text: str, headers: Headers) -> None:
    body = {"model": "characters", "prompt": text, "max_tokens": 5, "stream": True}
    reply = client.post("/v1/completions", json=body, headers=headers)
    assert reply.text.endswith("data: [DONE]\n\n")


def respond(client: httpx.Client, rpc: str, text: str, headers: Headers) -> None:
    body = {"model": "characters", "input": text, "max_output_tokens": 5}
    client.post("/v1/responses", json=body, headers=headers).raise_for_status()


def embed(client: httpx.Client, rpc: str, text: str, headers: Headers) -> None:
    body = {"model": "question", "input": text}
    client.post("/v1/embeddings", json=body, headers=headers).raise_for_status()


def predict(client: httpx.Client, rpc: str, text: str, headers: Headers) -> None:
    parameters = {"model": "question"}
    reply = client.post("/predict", params=parameters, json={"inputs": text}, headers=headers)
    reply.raise_for_status()


def step(client: httpx.Client, rpc: str, text: str, headers: Headers) -> None:
    created = client.post("/v1/streams", json={"model": "question"})
    path = f"/v1/streams/{created.json()['id']}/steps"
    body = {"step": 1, "input": f"{text} ", "more": True}
    client.post(path, json=body, headers=headers).raise_for_status()


def infer(client: httpx.Client, rpc: str, text: str, headers: Headers) -> None:
    tensor = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text]}
    path = "/v2/models/question/infer"
    client.post(path, json={"inputs": [tensor]}, headers=headers).raise_for_status()


def infer_rpc(client: httpx.Client, rpc: str, text: str, headers: Headers) -> None:
    with triton.InferenceServerClient(rpc) as connection:
        connection.infer("question", [texts(triton, "text", text)], headers=dict(headers))


def talk(client: httpx.Client, rpc: str, text: str, headers: Headers) -> None:
    with open_socket(client, additional_headers=dict(headers)) as socket:
        frame = {"model": "question", "input": f"{text} ", "id": next(_ids)}
        socket.send(json.dumps(frame))
        assert "error" not in json.loads(socket.recv())


ROUTES: dict[str, tuple[Ask, str]] = {
    "classify": (classify, "POST /v1/classify"),
    "complete": (complete, "POST /v1/completions"),
    "stream": (stream, "POST /v1/completions"),
    "respond": (respond, "POST /v1/responses"),
    "embed": (embed, "POST /v1/embeddings"),
    "predict": (predict, "POST /predict"),
    "step": (step, "POST /v1/streams/{id}/steps"),
    "infer": (infer, "POST /v2/infer"),
    "infer_rpc": (infer_rpc, "inference.GRPCInferenceService/ModelInfer"),
    "talk": (talk, "websocket /v1/stream"),
}
"""By name: a request, and the name of its span."""
GENERATING = ("complete", "stream", "respond")
"""The names of those that generate text."""


def reply_id(reply: Any) -> str:
    """The server's own number of a request under `/v1`."""
    return str(reply["id"]).partition("-")[2]
