"""A text in chunks, over every route that continues a stream."""

import json
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from typing import Any

import httpx

from tests.server.websocket.sockets import open_socket

Route = Callable[[httpx.Client, str, str, Sequence[str]], list[dict[str, Any]]]
_ids = count(1)


def parts(text: str, cuts: Sequence[int]) -> list[str]:
    """A text, cut at these places."""
    bounds = [0, *sorted(cuts), len(text)]
    return [text[begin:end] for begin, end in pairwise(bounds)]


def over_http(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    reply = client.post(path, json=body)
    assert reply.status_code in (200, 201), reply.text
    parsed: dict[str, Any] = reply.json()
    return parsed


def by_token(
    client: httpx.Client, task: str, model: str, chunks: Sequence[str]
) -> list[dict[str, Any]]:
    """The results of chunks whose states the client carries."""
    state, results = None, []
    for number, chunk in enumerate(chunks, 1):
        body = {"model": model, "input": chunk, "state": state, "more": number < len(chunks)}
        (result,) = over_http(client, f"/v1/{task}", **body)["results"]
        results.append(result)
        state = result["state"]
    return results


def held(
    client: httpx.Client, task: str, model: str, chunks: Sequence[str]
) -> list[dict[str, Any]]:
    """The results of the steps of a stream that the server holds."""
    del task
    stream = over_http(client, "/v1/streams", model=model)["id"]
    results = []
    for number, chunk in enumerate(chunks, 1):
        body = {"step": number, "input": chunk, "more": number < len(chunks)}
        results += over_http(client, f"/v1/streams/{stream}/steps", **body)["results"]
    return results


def by_socket(
    client: httpx.Client, task: str, model: str, chunks: Sequence[str]
) -> list[dict[str, Any]]:
    """The results of the frames of a WebSocket."""
    del task
    results = []
    with open_socket(client) as socket:
        socket.send(json.dumps({"model": model}))
        socket.recv()
        for number, chunk in enumerate(chunks, 1):
            socket.send(json.dumps({"input": chunk, "more": number < len(chunks)}))
            results.append(json.loads(socket.recv()))
    return results


def by_sequence(
    client: httpx.Client, task: str, model: str, chunks: Sequence[str]
) -> list[dict[str, Any]]:
    """The output tensors of a sequence of KServe, by name."""
    results, sequence = [], f"chunks {next(_ids)}"
    for number, chunk in enumerate(chunks, 1):
        batch = [1] if task == "classify" else []
        flags = {"sequence_start": number == 1, "sequence_end": number == len(chunks)}
        body = {
            "inputs": [
                {"name": "text", "datatype": "BYTES", "shape": [*batch, 1], "data": [chunk]}
            ],
            "parameters": {"sequence_id": sequence, **flags},
        }
        outputs = over_http(client, f"/v2/models/{model}/infer", **body)["outputs"]
        results.append({output["name"]: output["data"] for output in outputs})
    return results
