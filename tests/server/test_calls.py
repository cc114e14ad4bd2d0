"""How many Python functions a warm request calls: what it costs, without a clock.

Whoever makes one of them cheaper lowers its bound; whoever has to raise one says why.
"""

import threading
from collections.abc import Callable, Iterator
from itertools import count
from types import FrameType
from typing import Any

import httpx
import pytest

from tests.server.conftest import Serve

_WARM, _COUNTED = 20, 100
# Calls of each, with 3% to spare. A held step counts in the budget of bodies from its beginning.
_CLASSIFY, _HELD_STEP, _TOKENS = 580, 915, 270


class Calls:
    """Counts the calls of all threads that were started while it was installed."""

    def __init__(self) -> None:
        self._counter = count()
        self._counts = False

    def see(self, frame: FrameType, event: str, argument: Any) -> None:
        """The profiler's function."""
        if self._counts and event == "call":
            next(self._counter)

    def of(self, work: Callable[[], object]) -> int:
        """How many functions are called while `work` runs."""
        begin = next(self._counter)
        self._counts = True
        work()
        self._counts = False
        return next(self._counter) - begin - 1


@pytest.fixture(scope="module")
def counted(serve: Serve) -> Iterator[tuple[httpx.Client, Calls]]:
    calls = Calls()
    before = threading.getprofile()
    threading.setprofile(calls.see)
    try:
        with serve("question", "characters") as (client, _):
            yield client, calls
    finally:
        threading.setprofile(before)


def test_a_classification(counted: tuple[httpx.Client, Calls]) -> None:
    client, calls = counted
    body = {"model": "question", "input": "How far is it from Denver to Aspen?"}

    def ask(times: int) -> None:
        for _ in range(times):
            assert client.post("/v1/classify", json=body).status_code == 200

    ask(_WARM)
    assert calls.of(lambda: ask(_COUNTED)) / _COUNTED <= _CLASSIFY


def test_a_step_of_a_held_stream(counted: tuple[httpx.Client, Calls]) -> None:
    client, calls = counted
    path = "/v1/streams/" + client.post("/v1/streams", json={"model": "question"}).json()["id"]

    def step(numbers: range) -> None:
        for number in numbers:
            body = {"step": number, "input": "how ", "more": True}
            assert client.post(f"{path}/steps", json=body).status_code == 200

    step(range(1, 1 + _WARM))
    more = range(1 + _WARM, 1 + _WARM + _COUNTED)
    assert calls.of(lambda: step(more)) / _COUNTED <= _HELD_STEP


def test_a_token_of_64_texts(counted: tuple[httpx.Client, Calls]) -> None:
    client, calls = counted

    def complete(tokens: int) -> None:
        body = {"model": "characters", "prompt": "a", "n": 64, "max_tokens": tokens, "seed": 1}
        assert client.post("/v1/completions", json=body).status_code == 200

    complete(1)
    first = calls.of(lambda: complete(1))
    assert (calls.of(lambda: complete(1 + _COUNTED)) - first) / _COUNTED <= _TOKENS
