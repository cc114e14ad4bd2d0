"""Limit the messages that arrive over gRPC, which are invisible until they are complete.

Once a read begins, gRPC's core receives up to `SRUSERVE_MAX_BODY_BYTES` without reporting the size,
so each read counts as the longest message. Nearly all messages arrive with their calls: their reads
are short, and a few at a time serve any number of calls. Slower reads have places and a deadline of
their own, or make way for others.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import grpc

from sruserve.server.errors import MalformedBody, ServeError
from sruserve.server.fair_semaphore import FairSemaphore
from sruserve.server.http.intake import request_timeout
from sruserve.server.kserve.grpc.call import end
from sruserve.server.kserve.grpc.shares import Caller, CallShares, SharedHold

_MOMENT_SECONDS = 0.01


class Reads:
    """The reads of one kind of calls, each with one message.

    places: the number of concurrent new reads.
    quick_seconds: the time that a read may have one of these places.
    slow: shares of the places for reads that take longer.
    seconds: the time that a read may have a slow place.
    """

    def __init__(self, places: int, quick_seconds: float, slow: CallShares, seconds: float) -> None:
        self.quick = FairSemaphore(places)
        self.quick_seconds, self.slow, self.seconds = quick_seconds, slow, seconds

    async def read(self, context: Any, caller: Caller) -> bytes:
        """The call's message; raises `ServeError`, with which the call may have ended already."""
        await self.quick.acquire(caller.client, caller.owner)
        read = _SlowingRead(self, context, caller)
        try:
            message = await read.message()
        finally:
            read.close()
        return _required(message)


class YieldingReads:
    """Reads of which half may be silent. A new read beyond that ends the oldest silent read of the
    owner with most of them. So a read waits only for calls that are being ended.

    A message that arrives with its call is seen before two more calls are, so it is never too late.

    places: the number of concurrent reads, including those of calls that are being ended.
    seconds: the time limit of a read.
    refuse: makes the error of a read that is ended early.
    """

    def __init__(self, places: int, seconds: float, refuse: Callable[[], ServeError]) -> None:
        self._places = FairSemaphore(places)
        self._max_silent = places // 2
        self.seconds, self._refuse = seconds, refuse
        self._silent: dict[TimedRead, Hashable] = {}  # the oldest first, with its owner

    async def read(self, context: Any, owner: Hashable) -> bytes:
        """The call's message; raises `ServeError`, with which the call may have ended already."""
        await self._places.acquire(owner)
        read = TimedRead(context, self.seconds)
        self._silent[read] = owner
        if len(self._silent) > self._max_silent:
            self._end_one()
        try:
            message = await read.message()
        finally:
            read.close()
            self._silent.pop(read, None)
            self._places.release(owner)
        return _required(message)

    def _end_one(self) -> None:
        ((largest, _),) = Counter(self._silent.values()).most_common(1)
        oldest = next(read for read, owner in self._silent.items() if owner == largest)
        del self._silent[oldest]
        oldest.end(self._refuse())


def _required(message: bytes | None) -> bytes:
    if message is None:
        raise MalformedBody("the call has no message; send one")
    return message


class TimedRead:
    """A read whose call ends if no message arrives in time. Close it after use."""

    def __init__(self, context: Any, seconds: float) -> None:
        self._context = context
        self._problem: ServeError | None = None
        self._loop = asyncio.get_running_loop()
        self._wait(seconds)

    async def message(self) -> bytes | None:
        """The next message, or None after the last one; raises `RequestTimeout`."""
        try:
            message = await self._context.read()
        except grpc.aio.AbortError as aborted:
            aborted.__traceback__ = None  # the call keeps it, and its frames would keep the call
            assert self._problem is not None
            raise self._problem from None
        if self._problem is not None:  # it arrived just then
            raise self._problem
        return None if message is grpc.aio.EOF else message

    def close(self) -> None:
        """Stop the timer."""
        self._timer.cancel()

    def end(self, problem: ServeError) -> None:
        """End the call before its message arrives."""
        if self._problem is None:
            self._problem = problem
            self._ending = self._loop.create_task(end(self._context, problem))

    def _wait(self, seconds: float) -> None:
        self._seconds = seconds
        # after a stall of the loop, messages that arrived meanwhile are read before the time is up
        self._timer = self._loop.call_later(seconds, self._wait_a_moment)

    def _wait_a_moment(self) -> None:
        self._timer = self._loop.call_later(_MOMENT_SECONDS, self._expire)

    def _expire(self) -> None:
        self.end(request_timeout(self._seconds))


class _SlowingRead(TimedRead):
    """A read that has a quick place at first, and then a slow one."""

    def __init__(self, reads: Reads, context: Any, caller: Caller) -> None:
        super().__init__(context, reads.quick_seconds)
        self._reads, self._caller = reads, caller
        self._quick = True
        self._slow: SharedHold | None = None

    def close(self) -> None:
        super().close()
        if self._quick:
            self._reads.quick.release(self._caller.client)
        if self._slow is not None:
            self._slow.release()

    def _expire(self) -> None:
        reads = self._reads
        if self._slow is not None:
            super()._expire()
            return
        try:
            self._slow = reads.slow.hold(1, self._caller)
        except ServeError as problem:
            self.end(problem)
            return
        self._quick = False
        reads.quick.release(self._caller.client)
        self._wait(reads.seconds)
