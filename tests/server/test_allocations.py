"""How many containers a warm request makes, and that it leaves nothing: no clock.

Lists, dicts, tuples, instances and the like: those that all threads of the server are seen to make
in each function, rounded to whole ones of a request.
Whoever makes one of them cheaper lowers its bound; whoever has to raise one says why.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

from tests.memory import least_growth, python_blocks
from tests.server.conftest import Serve
from tests.server.warm_requests import (
    OneWriteClient,
    Work,
    classifications,
    held_steps,
    of_each,
    profiled,
    tokens_of_64_texts,
)

_WARM, _COUNTED = 200, 100
# Today's are 277, 808, and 198 to 212: what every second request makes rounds either way.
_CLASSIFY, _HELD_STEP, _TOKENS = 279, 811, 221


class Allocations:
    """Counts what the garbage collector would look at, whenever a thread of the server calls or
    returns, also in C: of what is made and freed between two of these, nothing is seen."""

    def __init__(self) -> None:
        self._counts = False
        self._alive: list[list[None]] = []
        self._made: Counter[CodeType] = Counter()
        self._last = 0

    def see(self, frame: FrameType, event: str, argument: Any) -> None:
        """The profiler's function."""
        if self._counts:
            now = gc.get_count()[0]
            if now > self._last:
                self._made[frame.f_code] += now - self._last
            self._last = now

    def of(self, work: Callable[[], object]) -> Counter[CodeType]:
        """How many objects each function makes while `work` runs."""
        gc.disable()
        gc.collect()  # the count begins anew, and is never below zero
        self._alive = [[] for _ in range(10_000)]
        self._made, self._last = Counter(), gc.get_count()[0]
        self._counts = True
        try:
            work()
        finally:
            self._counts = False
            gc.enable()
        return self._made


@pytest.fixture(scope="module")
def counted(serve: Serve) -> Iterator[tuple[OneWriteClient, Allocations]]:
    allocations = Allocations()
    with profiled(serve, allocations.see) as client:
        yield client, allocations


def check(allocations: Allocations, work: Work, limit: int) -> None:
    """Work of so many requests makes no more objects for each, and leaves nothing of them."""
    work(_WARM)
    assert of_each(allocations.of(lambda: work(_COUNTED)), _COUNTED) <= limit
    left = least_growth(python_blocks, lambda: work(2 * _COUNTED))
    assert left < 2 * 4 * _COUNTED, "a request that stays has dozens"


def test_a_classification(counted: tuple[OneWriteClient, Allocations]) -> None:
    client, allocations = counted
    check(allocations, classifications(client), _CLASSIFY)


def test_a_step_of_a_held_stream(counted: tuple[OneWriteClient, Allocations]) -> None:
    client, allocations = counted
    check(allocations, held_steps(client), _HELD_STEP)


def test_a_token_of_64_texts(counted: tuple[OneWriteClient, Allocations]) -> None:
    client, allocations = counted
    check(allocations, tokens_of_64_texts(client), _TOKENS)
