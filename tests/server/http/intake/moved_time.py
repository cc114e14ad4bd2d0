"""The time that messages may take, as a clock that stands still until a test moves it."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from sruserve.server.http.intake import ReceiveLimits


class MovedTime:
    """What the connections of servers in this process take for the time of their event loop.

    timers: those that have been set, and neither were cancelled nor have run.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[_Timer] = []

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass, once the event loops have read what was sent to them."""
        for loop in {timer.loop for timer in self.timers}:
            for _ in range(10):
                _run(loop, lambda: None)
        self.now += seconds
        for timer in [each for each in self.timers if each.due <= self.now]:
            _run(timer.loop, timer.run)


class _Timer:
    def __init__(self, moved: MovedTime, loop: Any, due: float, call: Callable[[], Any]) -> None:
        self.due, self.loop = due, loop
        self._moved, self._call = moved, call
        moved.timers.append(self)

    def run(self) -> None:
        if self in self._moved.timers:
            self.cancel()
            self._call()

    def cancel(self) -> None:
        if self in self._moved.timers:
            self._moved.timers.remove(self)


class _MovedLoop:
    """An event loop but for its time."""

    def __init__(self, moved: MovedTime, loop: asyncio.AbstractEventLoop) -> None:
        self._moved, self._loop = moved, loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self._moved.now

    def call_at(self, due: float, call: Callable[[], Any]) -> _Timer:
        return _Timer(self._moved, self._loop, due, call)


def _run(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Call a function on a loop that another thread runs, and wait for it."""
    done: Future[object] = Future()
    loop.call_soon_threadsafe(lambda: done.set_result(call()))
    done.result(60)


@contextmanager
def moved_time() -> Iterator[MovedTime]:
    """The time of all connections that are made in this block."""
    moved = MovedTime()

    def loop_of(connection: Any) -> _MovedLoop:
        return _MovedLoop(moved, connection.__dict__["true_loop"])

    def keep(connection: Any, loop: asyncio.AbstractEventLoop) -> None:
        connection.__dict__["true_loop"] = loop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReceiveLimits, "loop", property(loop_of, keep), raising=False)
        yield moved
