"""The requests whose cost is counted without a clock, and a server whose threads are profiled."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import Any

import httpx

from tests.server.conftest import Serve

Work = Callable[[int], object]


@contextmanager
def profiled(
    serve: Serve, see: Callable[[FrameType, str, Any], object], **settings: Any
) -> Iterator[httpx.Client]:
    """A client of a server all of whose threads have `see` as their profiler."""
    before = threading.getprofile()
    threading.setprofile(see)
    try:
        with serve("question", "characters", **settings) as (client, _):
            yield client
    finally:
        threading.setprofile(before)


def classifications(client: httpx.Client) -> Work:
    """Classify one text, so many times."""

    def ask(times: int) -> None:
        body = {"model": "question", "input": "How far is it from Denver to Aspen?"}
        for _ in range(times):
            assert client.post("/v1/classify", json=body).status_code == 200

    return ask


def held_steps(client: httpx.Client) -> Work:
    """Do so many further steps of one held stream."""
    path = "/v1/streams/" + client.post("/v1/streams", json={"model": "question"}).json()["id"]
    numbers = count(1)

    def step(times: int) -> None:
        for _ in range(times):
            body = {"step": next(numbers), "input": "how ", "more": True}
            assert client.post(f"{path}/steps", json=body).status_code == 200

    return step


def tokens_of_64_texts(client: httpx.Client) -> Work:
    """Complete 64 texts by so many tokens each."""

    def complete(tokens: int) -> None:
        body = {"model": "characters", "prompt": "a", "n": 64, "max_tokens": tokens, "seed": 1}
        assert client.post("/v1/completions", json=body).status_code == 200

    return complete
