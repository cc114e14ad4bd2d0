"""How long the server waits for clients that hardly read."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from sruserve.server.patience import Patience


class Loop:
    """A clock that is set by hand."""

    now, due = 0.0, float("inf")

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, what: Callable[[], object]) -> Any:
        self.due, self._what = self.now + seconds, what
        return self

    def cancel(self) -> None:
        self.due = float("inf")

    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.due:
            self._what()


class Base(asyncio.Protocol):
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class Connection(Patience, Base):
    def __init__(self) -> None:
        self.clock, self.aborted = Loop(), False
        self.loop = cast(asyncio.AbstractEventLoop, self.clock)
        self.transport = cast(asyncio.Transport, self)
        self.timeout_keep_alive = 75

    def abort(self) -> None:
        self.aborted = True

    def turn(self, seconds: float) -> None:
        """The client takes what the transport holds within so many seconds."""
        self.pause_writing()
        self.clock.wait(seconds)
        if not self.aborted:
            self.resume_writing()


def test_a_client_that_takes_nothing_is_hung_up_on() -> None:
    connection = Connection()
    connection.turn(74)
    assert not connection.aborted
    connection = Connection()
    connection.turn(75)
    assert connection.aborted


def test_a_client_that_reads_at_a_modest_rate_may_take_for_ever() -> None:
    connection = Connection()
    for _ in range(10_000):
        connection.turn(2.9)  # 48 KiB
    assert not connection.aborted


def test_a_client_that_takes_a_little_now_and_then_is_hung_up_on() -> None:
    connection, turns = Connection(), 0
    while not connection.aborted:
        connection.turn(30)
        turns += 1
    assert turns == 3
