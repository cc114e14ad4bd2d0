"""How many Python functions a warm request calls: what it costs, without a clock.

Whoever makes one of them cheaper lowers its bound; whoever has to raise one says why.
"""

from collections.abc import Callable, Iterator
from itertools import count
from types import FrameType
from typing import Any

import httpx
import pytest

from tests.server.conftest import Serve
from tests.server.warm_requests import (
    Work,
    classifications,
    held_steps,
    profiled,
    tokens_of_64_texts,
)

_WARM, _COUNTED = 20, 100
# Calls of each, with 10% to spare: where a request takes long, an engine reports in between.
_CLASSIFY, _HELD_STEP, _TOKENS = 275, 770, 135


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
        """How many functions are called while `work` runs: the fewest of three times.

        A thread that has to wait where it need not on an idle machine calls some more.
        """
        return min(self._once(work) for _ in range(3))

    def _once(self, work: Callable[[], object]) -> int:
        begin = next(self._counter)
        self._counts = True
        work()
        self._counts = False
        return next(self._counter) - begin - 1


@pytest.fixture(scope="module")
def counted(serve: Serve) -> Iterator[tuple[httpx.Client, Calls]]:
    calls = Calls()
    with profiled(serve, calls.see) as client:
        yield client, calls


def check(calls: Calls, work: Work, limit: int) -> None:
    """So many warm requests call no more functions each."""
    work(_WARM)
    assert calls.of(lambda: work(_COUNTED)) / _COUNTED <= limit


def test_a_classification(counted: tuple[httpx.Client, Calls]) -> None:
    client, calls = counted
    check(calls, classifications(client), _CLASSIFY)


def test_a_step_of_a_held_stream(counted: tuple[httpx.Client, Calls]) -> None:
    client, calls = counted
    check(calls, held_steps(client), _HELD_STEP)


def test_a_token_of_64_texts(counted: tuple[httpx.Client, Calls]) -> None:
    client, calls = counted
    complete = tokens_of_64_texts(client)
    complete(1)
    first = calls.of(lambda: complete(1))
    assert (calls.of(lambda: complete(1 + _COUNTED)) - first) / _COUNTED <= _TOKENS
