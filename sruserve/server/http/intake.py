"""Limits on the request bytes of all connections of a worker, and on the time of a message."""

import asyncio
import time
from collections.abc import Callable, Hashable

from sruserve.server.budget import Budget
from sruserve.server.errors import Overloaded, ServeError
from sruserve.server.http.disconnects import DisconnectWatch
from sruserve.server.http.errors import RequestTimeout
from sruserve.server.http.parse_queue import Waiting
from sruserve.server.http.parse_turns import ParseTurns
from sruserve.server.tasks.limits import FREE_BYTES


class Intake:
    """The limits on received bytes that all connections share.

    limit: of the bytes of all connections, beyond the free bytes of each. A tenant with an API
        key, or an address without one, gets at most half.
    grace_seconds, bytes_per_second: a message may take the grace, plus the time of its bytes at
        this rate.
    max_timed_bytes: the bytes of one message that add to its time.
    turns: limits the parsing in one turn of the event loop.
    disconnects: detects disconnects while reading is paused.
    clock: monotonic seconds, of the turns.
    """

    def __init__(
        self,
        limit: int,
        grace_seconds: float,
        bytes_per_second: int,
        max_timed_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget = Budget(limit, _full, share=limit // 2, yields=True)
        self.grace_seconds, self._rate = grace_seconds, bytes_per_second
        self._max_timed_bytes = max_timed_bytes
        self.turns, self.disconnects = ParseTurns(clock=clock), DisconnectWatch()

    def seconds(self, received: int) -> float:
        """The time that a message may take. received: its bytes so far."""
        return self.grace_seconds + min(received, self._max_timed_bytes) / self._rate

    def too_slow(self) -> RequestTimeout:
        """The error for a client that sends too slowly."""
        return request_timeout(
            self.grace_seconds, f" and the time of its bytes at {self._rate} bytes per second"
        )


class BufferAccount:
    """Counts the received bytes of one connection that nobody has read yet.

    client: their owner until a tenant with an API key claims them; connections of one address
        share it.
    owner: the current owner of the bytes.
    """

    __slots__ = ("_client", "_hold", "owner")

    def __init__(self, intake: Intake, client: Hashable = None) -> None:
        self._client = self.owner = client
        self._hold = intake.budget.hold(owner=client)

    @property
    def counts(self) -> bool:
        """Whether any of the bytes count."""
        return self._hold.amount > 0

    def count(self, amount: int) -> None:
        """Set the number of bytes that the connection holds; raises `Overloaded`."""
        self._hold.resize(max(0, amount - FREE_BYTES))

    def lower(self, amount: int) -> bool:
        """Set a lower number of bytes; never raises. Returns whether all of `amount` is counted."""
        counted = max(0, amount - FREE_BYTES)
        self._hold.resize(min(counted, self._hold.amount))
        return counted == self._hold.amount

    def claim(self, owner: Hashable) -> None:
        """Count the bytes for an owner, or for the client if None; raises `Overloaded`."""
        if owner is None:
            owner = self._client
        if owner != self.owner:
            self._hold.move_to(owner)
            self.owner = owner

    def expect(self, amount: int) -> None:
        """Raise `Overloaded` if `amount` bytes would not fit now."""
        current = self._hold.amount
        self._hold.resize(max(current, amount - FREE_BYTES))
        self._hold.resize(current)


class ReceiveLimits(asyncio.Protocol):
    """A connection that stops receiving a message that is too large or too slow."""

    loop: asyncio.AbstractEventLoop
    _intake: Intake
    _buffer_account: BufferAccount
    _began: float | None = None  # the arrival of the incomplete message
    _received = 0  # its bytes, approximately
    _timer: asyncio.TimerHandle | None = None
    _undecrypted_bytes = 0  # received bytes that wait in TLS

    @property
    def owner(self) -> Hashable:
        """The owner of the received bytes: a tenant, or the clients of an address."""
        return self._buffer_account.owner

    def take_turn(self, cost: int) -> asyncio.Future[None] | None:
        """Charge work for the current request; None: it may begin, else the future resolves."""
        return self._intake.turns.take(cost, self.owner)

    def kind_of(self, size: int) -> Waiting:
        """What `size` received bytes are that wait."""
        raise NotImplementedError

    def stop_receiving(self, problem: ServeError) -> None:
        """Stop receiving, and report the problem."""
        raise NotImplementedError

    def count(self, size: int, unfinished: bool) -> None:
        """Count the bytes that the connection holds, and the time of an incomplete message."""
        try:
            self._buffer_account.count(size)
        except ServeError as problem:
            self._undecrypted_bytes = 0
            self.stop_receiving(problem)
            return
        if not unfinished:
            self._began, self._received = None, 0
        elif self._began is None:
            self._began = self.loop.time()
            if self._timer is None:
                self._set_timer()

    def count_undecrypted(self, size: int) -> bool:
        """Count bytes that wait to be decrypted; False: nothing is received, so drop them."""
        self._undecrypted_bytes = size
        if not self._is_discarding():
            self._count()
        if self._is_discarding():
            self._undecrypted_bytes = 0
        return not self._is_discarding()

    def forget_arrival(self) -> None:
        """Stop counting, because nothing more is received."""
        if self._timer is not None:
            self._timer.cancel()
        self._buffer_account.lower(0)

    def _count(self) -> None:
        """Count what the connection holds now."""
        raise NotImplementedError

    def _is_discarding(self) -> bool:
        """Whether received bytes are dropped."""
        raise NotImplementedError

    def _is_reading_paused(self) -> bool:
        """Whether the server has paused reading, so that the client cannot send."""
        raise NotImplementedError

    def _set_timer(self) -> None:
        assert self._began is not None
        due = self._began + self._intake.seconds(self._received)
        self._timer = self.loop.call_at(due, self._check_time)

    def _check_time(self) -> None:
        self._timer = None
        if self._began is None or self._is_discarding():
            return
        if self._is_reading_paused():
            self._began, self._received = self.loop.time(), 0
        if self._began + self._intake.seconds(self._received) > self.loop.time():
            self._set_timer()
        else:
            self.stop_receiving(self._intake.too_slow())


def request_timeout(seconds: float, more: str = "") -> RequestTimeout:
    """The error for a request that did not arrive in time, over any protocol."""
    return RequestTimeout(
        f"the request was too slow: it may take {seconds:g} seconds{more}; send it faster"
    )


def _full() -> Overloaded:
    return Overloaded(
        "too many request bytes are being received (limit: SRUSERVE_MAX_QUEUE_BYTES); retry later "
        f"or send requests of up to {FREE_BYTES} bytes"
    )
