"""The time that clients may take, as a clock that stands still until a test moves it."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from sruserve.server.http.intake import ReceiveLimits
from sruserve.server.http.tls_handshake import TlsHandshake
from sruserve.server.kserve.grpc.reading import TimedRead

# What waits for clients, and the name under which it has its event loop.
_WAITING = {ReceiveLimits: "loop", TlsHandshake: "_loop", TimedRead: "_loop"}


class MovedTime:
    """What connections and reads over gRPC in this process take for the time of their event loop.

    timers: those that have been set, and neither were cancelled nor have run.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[_Timer] = []

    def waits(self, seconds: float) -> bool:
        """Whether a timer is due in so many seconds, or in less than one more."""
        return any(seconds <= timer.due - self.now < seconds + 1 for timer in self.timers)

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass, once the event loops have read what was sent to them.

        Each timer runs when it is due, and with it all that follows at once.
        """
        for loop in {timer.loop for timer in self.timers}:
            _settle(loop)
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer.due <= end]:
            timer = min(due, key=lambda each: each.due)
            self.now = max(self.now, timer.due)
            _run(timer.loop, timer.run)
            _settle(timer.loop)
        self.now = end


class _Timer:
    def __init__(
        self, moved: MovedTime, loop: asyncio.AbstractEventLoop, due: float, call: Callable[[], Any]
    ) -> None:
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
        self._moved, self.true_loop = moved, loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self.true_loop, name)

    def time(self) -> float:
        return self._moved.now

    def call_at(self, due: float, call: Callable[[], Any]) -> _Timer:
        return _Timer(self._moved, self.true_loop, due, call)

    def call_later(self, seconds: float, call: Callable[[], Any]) -> _Timer:
        return self.call_at(self._moved.now + seconds, call)


def _settle(loop: asyncio.AbstractEventLoop) -> None:
    """Let a loop read what was sent to it, and do what follows."""
    for _ in range(10):
        _run(loop, lambda: None)


def _run(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Call a function on a loop that another thread runs, and wait for it."""
    done: Future[object] = Future()
    loop.call_soon_threadsafe(lambda: done.set_result(call()))
    done.result(60)


@contextmanager
def moved_time() -> Iterator[MovedTime]:
    """The time of all connections, handshakes and reads over gRPC that begin in this block."""
    moved = MovedTime()

    def moved_loop(name: str) -> property:
        def loop_of(owner: Any) -> Any:
            loop = owner.__dict__[name]
            return _MovedLoop(moved, loop) if "has_moved_time" in owner.__dict__ else loop

        def keep(owner: Any, loop: Any) -> None:
            is_moved = isinstance(loop, _MovedLoop)  # it goes on from TLS to HTTP
            owner.__dict__[name] = loop.true_loop if is_moved else loop
            owner.__dict__["has_moved_time"] = True

        return property(loop_of, keep)

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in _WAITING.items():
            patch.setattr(owner, name, moved_loop(name), raising=False)
        yield moved
