"""Requests to translate."""

import json
import random
from typing import Any

import httpx

from tests.model.translation.systems import SOURCE


def sources(count: int, longest: int = 12, seed: int = 5) -> list[list[int]]:
    """Random ids of sources, without those around them."""
    draw = random.Random(seed)
    return [
        [draw.randrange(3, SOURCE) for _ in range(draw.randint(1, longest))] for _ in range(count)
    ]


def text(ids: list[int]) -> str:
    """A source text with these ids."""
    return " ".join(f"a{i}" for i in ids)


def words(tokens: Any) -> str:
    """The text of target ids."""
    return " ".join("<unk>" if token == 0 else f"b{token}" for token in tokens)


def pieces(whole: str, draw: random.Random) -> list[str]:
    """A text cut at up to six random places, also inside words."""
    cuts = sorted(draw.choices(range(1, len(whole) + 1), k=draw.randint(0, 6)))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


def ask(client: httpx.Client, model: str, **fields: Any) -> list[dict[str, Any]]:
    """The results of a request."""
    reply = client.post("/v1/translate", json={"model": model, **fields})
    assert reply.status_code == 200, reply.text
    results: list[dict[str, Any]] = reply.json()["results"]
    return results


def stream(client: httpx.Client, model: str, **fields: Any) -> list[dict[str, Any]]:
    """The events of a streamed request, without `[DONE]`."""
    body = {"model": model, "stream": True, **fields}
    with client.stream("POST", "/v1/translate", json=body) as reply:
        assert reply.status_code == 200, reply.read()
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line[6:] for line in reply.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
