"""The requests whose cost is counted without a clock, and a server whose threads are profiled.

What a request does must not depend on how fast the machine is, or counts would be of its load: it
comes in one piece, one thread is chosen for it, and nothing ticks while requests are counted. On a
slow machine, the ten ticks a second of uvicorn alone are eight calls or more of each request.
"""

import asyncio
import json
import math
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from itertools import count
from types import CodeType, FrameType
from typing import Any

import pytest

from tests.server.conftest import Serve

Work = Callable[[int], object]


def of_each(counts: Counter[CodeType], times: int) -> int:
    """The sum over all functions of what each of so many requests counts of it, in whole numbers.

    Neither the end of a request that came before nor what happens now and then changes it.
    """
    return sum(round(counted / times) for counted in counts.values())


class OneWriteClient:
    """Sends each request in one write: head and body in two are one read or two of the server."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON of a reply, which has to be a success."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: server\r\ncontent-length: {len(content)}\r\n\r\n"
        self._line.sendall(head.encode() + content)
        with HTTPResponse(self._line) as reply:
            reply.begin()
            assert reply.status in (200, 201)
            return json.loads(reply.read())


@contextmanager
def profiled(
    serve: Serve, see: Callable[[FrameType, str, Any], object], **settings: Any
) -> Iterator[OneWriteClient]:
    """A client of a server all of whose threads have `see` as their profiler.

    However slow the machine is, the event loop answers a short request that is alone itself,
    engines do not report in between, and the server's loops do not tick.
    """
    before = threading.getprofile()
    threading.setprofile(see)
    try:
        with serve("question", "characters", **settings) as (client, application):
            catalogue = application.lifecycle.catalogue
            for name in catalogue:
                engine = catalogue.with_states(name).engine
                engine.short_seconds, engine.report_seconds = math.inf, 3600
            address = client.base_url.host, client.base_url.port or 0
            with socket.create_connection(address, 60) as line, without_ticks():
                yield OneWriteClient(line)
    finally:
        threading.setprofile(before)


@contextmanager
def without_ticks() -> Iterator[None]:
    """Let no task end a sleep before the block ends, so that time alone calls nothing."""
    sleepers: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    sleep = asyncio.sleep

    async def sleep_on(seconds: float) -> None:
        if seconds > 0:
            sleepers.append((asyncio.get_running_loop(), woken := asyncio.Event()))
            await woken.wait()
        else:
            await sleep(seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "sleep", sleep_on)
        yield
    for loop, woken in sleepers:
        loop.call_soon_threadsafe(woken.set)


def classifications(client: OneWriteClient) -> Work:
    """Classify one text, so many times."""

    def ask(times: int) -> None:
        body = {"model": "question", "input": "How far is it from Denver to Aspen?"}
        for _ in range(times):
            client.post("/v1/classify", body)

    return ask


def held_steps(client: OneWriteClient) -> Work:
    """Do so many further steps of one held stream."""
    path = "/v1/streams/" + client.post("/v1/streams", {"model": "question"})["id"]
    numbers = count(1)

    def step(times: int) -> None:
        for _ in range(times):
            body = {"step": next(numbers), "input": "how ", "more": True}
            client.post(f"{path}/steps", body)

    return step


def tokens_of_64_texts(client: OneWriteClient) -> Work:
    """Complete 64 texts by so many tokens each."""

    def complete(tokens: int) -> None:
        body = {"model": "characters", "prompt": "a", "n": 64, "max_tokens": tokens, "seed": 1}
        client.post("/v1/completions", body)

    return complete
