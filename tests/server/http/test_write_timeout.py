"""How long the server waits for clients that hardly read."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from sruserve.server.http.coalescing import CoalescingTransport
from sruserve.server.http.connections import PeerConnections
from sruserve.server.http.write_timeout import WriteTimeout


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
        end = self.now + seconds
        while self.due <= end:
            self.now, self.due = self.due, float("inf")
            self._what()
        self.now = end


class Base(asyncio.Protocol):
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def eof_received(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


class Connection(WriteTimeout, Base):
    def __init__(self) -> None:
        self.clock, self.aborted, self.unsent, self.closing = Loop(), False, 0, False
        self._peer = PeerConnections("")
        self.loop = cast(asyncio.AbstractEventLoop, self.clock)
        self.transport = cast(asyncio.Transport, self)
        self.timeout_keep_alive = 75

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def turn(self, seconds: float, size: int = 48 << 10) -> None:
        """The client takes what the transport holds within so many seconds."""
        self.unsent = size
        self.pause_writing()
        self.clock.wait(seconds)
        if not self.aborted:
            self.unsent = 0
            self.resume_writing()


def test_a_client_that_takes_nothing_is_hung_up_on() -> None:
    connection = Connection()
    connection.turn(74)
    assert not connection.aborted
    connection = Connection()
    connection.turn(75)
    assert connection.aborted


@pytest.mark.parametrize(("seconds", "size"), [(2.9, 48 << 10), (7.9, 128 << 10)])
def test_a_client_that_reads_at_a_modest_rate_may_take_for_ever(seconds: float, size: int) -> None:
    connection = Connection()
    for _ in range(10_000):
        connection.turn(seconds, size)
    assert not connection.aborted


def test_a_client_that_takes_a_little_now_and_then_is_hung_up_on() -> None:
    connection, turns = Connection(), 0
    while not connection.aborted:
        connection.turn(30)
        turns += 1
    assert turns == 3


def test_a_client_that_takes_nothing_for_a_second_is_stuck_until_it_reads() -> None:
    connection = Connection()
    connection.pause_writing()
    connection.clock.wait(0.9)
    assert not connection._peer.stuck
    connection.clock.wait(0.1)
    assert list(connection._peer.stuck) == [connection]
    connection.resume_writing()
    assert not connection._peer.stuck


def close(connection: Connection) -> None:
    CoalescingTransport(connection.transport, connection.loop).close()
    assert connection.closing


@pytest.mark.parametrize("end", [close, Connection.eof_received])
def test_what_a_closed_connection_has_not_sent_is_dropped_after_a_while(
    end: Callable[[Connection], None],
) -> None:
    connection = Connection()
    connection.unsent = 1
    end(connection)
    connection.clock.wait(74)
    end(connection)  # once more changes nothing
    assert not connection.aborted
    connection.clock.wait(1)
    assert connection.aborted


@pytest.mark.parametrize("end", [close, Connection.eof_received])
def test_a_closed_connection_with_a_rest_gives_way(end: Callable[[Connection], None]) -> None:
    connection = Connection()
    connection.unsent = 1
    end(connection)
    (idle,) = connection._peer.idle
    idle.abort()
    assert connection.aborted


def test_a_client_that_takes_the_rest_of_a_closed_connection_ends_the_wait() -> None:
    connection = Connection()
    connection.unsent = 1
    close(connection)
    connection.connection_lost(None)
    assert connection.clock.due == float("inf")


def test_a_closed_connection_with_no_rest_waits_for_nothing() -> None:
    connection = Connection()
    close(connection)
    assert connection.clock.due == float("inf")
    assert not connection._peer.idle
