"""What is refused leaves nothing that only the garbage collector could free: it runs rarely
where requests make no cycles, and a body may have megabytes."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.server.conftest import Leftovers
from tests.server.websocket.sockets import open_socket

Ask = Callable[[httpx.Client], None]


def post(path: str, status: int, **body: Any) -> Ask:
    def ask(client: httpx.Client) -> None:
        reply = client.post(path, json=body)
        assert reply.status_code == status, reply.text

    return ask


def step(client: httpx.Client) -> None:
    stream = client.post("/v1/streams", json={"model": "characters"}).json()["id"]
    for body, status in (({"step": 3, "prompt": "a"}, 409), ({"step": 1, "prompt": 5}, 422)):
        assert client.post(f"/v1/streams/{stream}/steps", json=body).status_code == status


def frame(client: httpx.Client) -> None:
    with open_socket(client) as socket:
        for wrong in ({"model": "absent"}, {"model": "question", "input": 5}, {"op": "x" * 10}):
            socket.send(json.dumps(wrong))
            assert "error" in json.loads(socket.recv())


REFUSED = {
    "a wrong field": post("/v1/classify", 422, model="question", input=5),
    "an unknown field": post("/v1/classify", 422, model="question", input="a", x="b"),
    "an unknown model": post("/v1/score", 404, model="absent", input="a"),
    "a wrong state": post("/v1/score", 422, model="characters", input="a", state="sru2.x"),
    "ids out of range": post("/v1/score", 422, model="ids", input=[99]),
    "a constraint": post("/v1/completions", 422, model="characters", prompt="", regex="("),
    "a stream of text": post("/v1/completions", 422, model="characters", prompt="a", n=0),
    "predict": post("/predict?model=absent", 404, inputs="a"),
    "an inference": post("/v2/models/question/infer", 400, inputs=[]),
    "a load": post("/v2/repository/models/absent/load", 403),
    "a step": step,
    "a frame": frame,
}


@pytest.mark.parametrize("ask", REFUSED.values(), ids=REFUSED)
def test_a_refusal_over_http_or_a_socket(
    client: httpx.Client, ask: Ask, leftovers: Leftovers
) -> None:
    for _ in range(3):
        ask(client)
    assert not leftovers()
