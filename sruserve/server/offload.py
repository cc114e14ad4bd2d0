"""Run long work on a few threads, in a fair order, so that it does not block the event loop.

Waiting work is dropped when its client leaves. Cheaper work runs sooner, and the work of one owner
counts together, so that one owner's long work does not delay the others: each work's place is that
of the last begun work plus its cost (self-clocked fair queueing, Golestani 1994).
"""

import asyncio
import threading
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Hashable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Protocol, TypeVar

from sruserve.model.machine import usable_cores
from sruserve.server.errors import NoProcess, faults
from sruserve.server.unheard import forget_error

T = TypeVar("T")

# More would block the event loop for about a millisecond, whatever task or protocol has it:
LONG_BYTES = 64 << 10  # bytes to parse, pack, seal or open
LONG_CHARACTERS = 8 << 10  # characters to tokenize, and numbers or ids to describe as JSON
LONG_TOKENS = 1 << 10  # completed tokens: log-probabilities of each are a kilobyte of JSON
MAX_INLINE_STATES = 16  # states to seal or open: each has a cost beside that of its bytes
_IDLE_SECONDS = 60.0  # before an idle thread ends
# More threads would delay the event loop: each may hold the interpreter for 2 ms.
THREADS = max(2, min(4, usable_cores()))

owner: ContextVar[Hashable] = ContextVar("owner", default=None)  # None: without an owner


class Waiter(Protocol):
    """Waits for a future; if its client leaves first, cancels the future and raises."""

    async def wait(self, done: Future[Any]) -> None: ...


@dataclass(order=True, slots=True)
class _Work:
    """Work in the queue, ordered by its place and then by its arrival.

    done: its outcome. through: resolves when no thread runs it or ever will.
    begun: a thread runs it. dropped: its client has left, and no thread will run it.
    """

    place: int
    number: int
    do: Callable[[], Any] | None = field(compare=False)
    loop: AbstractEventLoop = field(compare=False)
    done: Future[Any] = field(compare=False)
    through: Future[None] = field(compare=False)
    begun: bool = field(default=False, compare=False)
    dropped: bool = field(default=False, compare=False)

    def run(self) -> None:
        """Run it on a thread."""
        assert self.do is not None
        try:
            outcome: Callable[[], None] = partial(self.done.set_result, self.do())
        except BaseException as error:  # a library's panic is not an `Exception`
            outcome = partial(self.done.set_exception, error)
        self.do = None
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._end, outcome)
        del outcome  # it may hold an error, whose traceback holds this frame

    def _end(self, outcome: Callable[[], None]) -> None:
        if not self.done.done():
            outcome()
        self.through.set_result(None)


class Offload:
    """Threads that run queued work of any event loop, and end when they are idle.

    idle_seconds: after which a thread ends.
    waiting: the amount of work that no thread has begun.
    """

    def __init__(self, threads: int, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._max_threads, self._idle_seconds = threads, idle_seconds
        self._threads = self._idle = 0
        self._changed = threading.Condition()
        self.waiting = 0
        self._waiting: list[_Work] = []  # a heap, at most half of it dropped work
        self._begun = 0  # the place of the last begun work
        self._places: dict[Hashable, int] = {}  # the last place of each owner with waiting work
        self._numbers = count()

    async def run(
        self, do: Callable[[], T], cost: int, owner: Hashable = None, waiter: Waiter | None = None
    ) -> T:
        """Run `do` on a thread. cost: the bytes that it reads or makes, about.

        If its client leaves, waiting work is dropped from the queue. If a thread has begun it, this
        returns only after the thread has ended it, so that its memory can be counted.
        """
        work = self._put(do, cost, owner)
        try:
            await (work.done if waiter is None else waiter.wait(work.done))
            result: T = work.done.result()
            return result
        except asyncio.CancelledError:
            forget_error(work.done)
            raise
        finally:
            await _end_of(work.through)

    def _put(self, do: Callable[[], Any], cost: int, owner: Hashable) -> _Work:
        loop = asyncio.get_running_loop()
        with self._changed:
            if self.waiting >= self._idle and self._threads < self._max_threads:
                self._add_thread()
            place = cost + max(self._begun, self._places.get(owner, 0))
            if owner is not None:
                self._places[owner] = place
            done, through = loop.create_future(), loop.create_future()
            work = _Work(place, next(self._numbers), do, loop, done, through)
            heappush(self._waiting, work)
            self.waiting += 1
            self._changed.notify()
        done.add_done_callback(partial(self._drop, work))
        return work

    def _add_thread(self) -> None:
        """Start a thread; raises `NoProcess` if there is none and none can be started."""
        # a daemon, because a process that ends at once must not wait for it
        thread = threading.Thread(
            target=self._serve, name=f"offload {self._threads + 1}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise NoProcess from None
        else:
            self._threads += 1

    def _drop(self, work: _Work, done: Future[Any]) -> None:
        """Drop cancelled work from the queue."""
        if not done.cancelled():
            return
        with self._changed:
            if work.begun:
                return
            work.dropped = True
            self.waiting -= 1
            if len(self._waiting) > 2 * self.waiting:
                self._waiting = [queued for queued in self._waiting if not queued.dropped]
                heapify(self._waiting)
        work.do = None
        work.through.set_result(None)

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            work.run()
            del work  # it refers to its result

    def _next(self) -> _Work | None:
        """The next work for a thread; None: the thread ends."""
        with self._changed:
            self._idle += 1
            has_work = self._changed.wait_for(lambda: self.waiting, self._idle_seconds)
            self._idle -= 1
            if not has_work:
                self._threads -= 1
                return None
            while (work := heappop(self._waiting)).dropped:
                pass
            work.begun = True
            self.waiting -= 1
            self._begun = work.place
            if not self.waiting:
                self._places.clear()
            return work


async def _end_of(through: Future[None]) -> None:
    """Wait for a future even if the wait is cancelled, and raise the cancellation then."""
    cancelled = None
    while not through.done():
        try:
            await asyncio.shield(through)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


POOL = Offload(THREADS)


async def offload(
    long: bool,
    work: Callable[..., T],
    *arguments: Any,
    cost: int = LONG_BYTES,
    caller: Waiter | None = None,
    pool: Offload = POOL,
) -> T:
    """Run `work` here if it is short, and on another thread if it would block the event loop.

    cost: the bytes that it reads or makes, about. caller: the request, whose client may leave
        before the work begins.
    """
    if not long:
        return work(*arguments)
    return await pool.run(partial(work, *arguments), cost, owner.get(), caller)


async def run_in_thread(name: str, work: Callable[[], T]) -> T:
    """Run very long work, such as loading a model, on its own thread; raises `NoProcess`."""
    loop = asyncio.get_running_loop()
    done: Future[T] = loop.create_future()

    def deliver(outcome: Callable[[], None]) -> None:
        if not done.done():  # its caller still waits
            outcome()

    def run() -> None:
        try:
            outcome: Callable[[], None] = partial(done.set_result, work())
        except faults() as error:
            outcome = partial(done.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed: a second signal did not wait
            loop.call_soon_threadsafe(deliver, outcome)
        del outcome  # it may hold an error, whose traceback holds this frame

    # a daemon, because a process that ends at once must not wait for it
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        raise NoProcess from None
    try:
        return await done
    except asyncio.CancelledError:
        forget_error(done)
        raise
