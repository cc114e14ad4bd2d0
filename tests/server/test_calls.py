"""How many Python functions a warm request calls: what it costs, without a clock.

Calls of all threads of the server, those of each function rounded to whole calls of a request.
Whoever makes one of them cheaper lowers its bound; whoever has to raise one says why.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.observing import until
from tests.server.warm_requests import (
    OneWriteClient,
    Work,
    classifications,
    held_steps,
    of_each,
    profiled,
    tokens_of_64_texts,
)

_WARM, _COUNTED = 20, 100
# Today's are 208, 642 and 112: one more may round either way.
_CLASSIFY, _HELD_STEP, _TOKENS = 209, 643, 113


class Calls:
    """Counts the calls of all threads that were started while it was installed."""

    def __init__(self) -> None:
        self._called: list[CodeType] = []
        self._counts = False

    def see(self, frame: FrameType, event: str, argument: Any) -> None:
        """The profiler's function."""
        if self._counts and event == "call":
            self._called.append(frame.f_code)  # which no other thread interrupts

    def of(self, work: Callable[[], object]) -> Counter[CodeType]:
        """How often each function is called while `work` runs."""
        self._called.clear()
        self._counts = True
        work()
        self._counts = False
        return Counter(self._called)

    def of_warm(self, work: Work) -> int:
        """How many functions a warm request calls."""
        work(_WARM)
        return of_each(self.of(lambda: work(_COUNTED)), _COUNTED)


@pytest.fixture(scope="module")
def counted(serve: Serve) -> Iterator[tuple[OneWriteClient, Calls]]:
    calls = Calls()
    with profiled(serve, calls.see) as client:
        yield client, calls


def test_time_alone_calls_nothing(counted: tuple[OneWriteClient, Calls]) -> None:
    client, calls = counted
    classifications(client)(1)
    until(lambda: not calls.of(lambda: time.sleep(0.3)))


def test_a_classification(counted: tuple[OneWriteClient, Calls]) -> None:
    client, calls = counted
    assert calls.of_warm(classifications(client)) <= _CLASSIFY


def test_a_step_of_a_held_stream(counted: tuple[OneWriteClient, Calls]) -> None:
    client, calls = counted
    assert calls.of_warm(held_steps(client)) <= _HELD_STEP


def test_a_token_of_64_texts(counted: tuple[OneWriteClient, Calls]) -> None:
    client, calls = counted
    complete = tokens_of_64_texts(client)
    complete(1)
    first = calls.of(lambda: complete(1))
    assert of_each(calls.of(lambda: complete(1 + _COUNTED)) - first, _COUNTED) <= _TOKENS
