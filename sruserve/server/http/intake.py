"""Bound the request bytes that all connections of a worker hold, and how long they may take."""

import asyncio
from collections.abc import Hashable

from sruserve.server.budget import Budget
from sruserve.server.errors import Overloaded, RequestTimeout, ServeError
from sruserve.server.http.departures import Departures
from sruserve.server.http.parse_turns import ParseTurns
from sruserve.server.tasks.limits import FREE_BYTES


class Intake:
    """The limits of what clients send, the same for all connections.

    limit: bytes of all connections together, beside the free ones of each. A tenant with an API
        key gets at most half, and so does the address of clients without one.
    grace_seconds, bytes_per_second: the time of one message is the grace, and then as long as its
        bytes take at this rate.
    most: bytes of one message that count for its time.
    turns: bounds what is parsed in one turn of the event loop.
    departures: sees clients leave that are not read.
    """

    def __init__(self, limit: int, grace_seconds: float, bytes_per_second: int, most: int) -> None:
        self.budget = Budget(limit, _full, share=limit // 2)
        self.grace_seconds, self._rate, self._most = grace_seconds, bytes_per_second, most
        self.turns, self.departures = ParseTurns(), Departures()

    def seconds(self, received: int) -> float:
        """How long a message may take of which so many bytes have come."""
        return self.grace_seconds + min(received, self._most) / self._rate

    def too_slow(self) -> RequestTimeout:
        """What a client is told that sends too slowly."""
        return late(
            self.grace_seconds, f" and the time of its bytes at {self._rate} bytes per second"
        )


class Inflow:
    """The bytes of one connection that nobody has read yet.

    client: whose they are while no tenant's with a key; the same for all connections of an address.
    """

    __slots__ = ("_client", "_hold")

    def __init__(self, intake: Intake, client: Hashable = None) -> None:
        self._client = client
        self._hold = intake.budget.hold(owner=client)

    @property
    def owner(self) -> Hashable:
        """Whose the bytes are now."""
        return self._hold.owner

    @property
    def counts(self) -> bool:
        """Whether something of it is counted."""
        return self._hold.amount > 0

    def count(self, amount: int) -> None:
        """The connection holds so many bytes now; raises `Overloaded` if that is too much."""
        self._hold.resize(max(0, amount - FREE_BYTES))

    def lower(self, amount: int) -> bool:
        """Count so many bytes, but no more than now. Returns whether these are all."""
        wanted = max(0, amount - FREE_BYTES)
        self._hold.resize(min(wanted, self._hold.amount))
        return wanted == self._hold.amount

    def claim(self, owner: Hashable) -> None:
        """Count the bytes as an owner's from now on, or as the client's; raises `Overloaded`."""
        if owner is None:
            owner = self._client
        if owner != self._hold.owner:
            self._hold.move_to(owner)

    def expect(self, amount: int) -> None:
        """Raise `Overloaded` if so many bytes would not fit now."""
        held = self._hold.amount
        self._hold.resize(max(held, amount - FREE_BYTES))
        self._hold.resize(held)


class Arriving(asyncio.Protocol):
    """A connection whose unfinished message is given up if it is too much or too slow."""

    loop: asyncio.AbstractEventLoop
    _intake: Intake
    _inflow: Inflow
    _began: float | None = None  # when the unfinished message was seen first
    _received = 0  # bytes of it, about
    _clock: asyncio.TimerHandle | None = None

    @property
    def owner(self) -> Hashable:
        """Whose connection it is now: a tenant's, or of all clients of an address."""
        return self._inflow.owner

    def give_up(self, problem: ServeError) -> None:
        """Receive no more, and say why."""
        raise NotImplementedError

    def count(self, held: int, unfinished: bool) -> None:
        """Count what the connection holds, and the time of a message that is not complete."""
        try:
            self._inflow.count(held)
        except ServeError as problem:
            self.give_up(problem)
            return
        if not unfinished:
            self._began, self._received = None, 0
        elif self._began is None:
            self._began = self.loop.time()
            if self._clock is None:
                self._set_clock()

    def forget_arrival(self) -> None:
        """Nothing more is received."""
        if self._clock is not None:
            self._clock.cancel()
        self._inflow.lower(0)

    def _is_deaf(self) -> bool:
        """Whether what comes is dropped."""
        raise NotImplementedError

    def _waits_for_us(self) -> bool:
        """Whether the message is not complete because we do not read."""
        raise NotImplementedError

    def _set_clock(self) -> None:
        assert self._began is not None
        due = self._began + self._intake.seconds(self._received)
        self._clock = self.loop.call_at(due, self._check_time)

    def _check_time(self) -> None:
        self._clock = None
        if self._began is None or self._is_deaf():
            return
        if self._waits_for_us():
            self._began, self._received = self.loop.time(), 0
        if self._began + self._intake.seconds(self._received) > self.loop.time():
            self._set_clock()
        else:
            self.give_up(self._intake.too_slow())


def late(seconds: float, more: str = "") -> RequestTimeout:
    """What a client is told, over any protocol, whose request has not come in time."""
    return RequestTimeout(
        f"the request was too slow: it may take {seconds:g} seconds{more}; send it faster"
    )


def _full() -> Overloaded:
    return Overloaded(
        "too many request bytes are being received (limit: SRUSERVE_MAX_QUEUE_BYTES); retry later "
        f"or send requests of up to {FREE_BYTES} bytes"
    )
