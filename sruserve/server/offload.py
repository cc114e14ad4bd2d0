"""Long work away from the event loop: a few threads, taken in a fair order, for those who wait.

Work that waits is dropped when its client leaves. Cheaper work goes sooner, and the work of one
owner counts together, so that nobody's long work delays everybody's: each gets a place behind what
was begun last, as far behind as it costs (self-clocked fair queueing, Golestani 1994).
"""

import asyncio
import os
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

from sruserve.server.errors import NoProcess, faults
from sruserve.server.unheard import forget_error

T = TypeVar("T")

LONG_BYTES = 64 << 10  # to parse or pack more would hold up the event loop
_IDLE_SECONDS = 60.0  # after which a thread ends
# More threads would take the interpreter from the event loop in turns of 2 ms each.
THREADS = max(2, min(4, len(os.sched_getaffinity(0))))

owner: ContextVar[Hashable] = ContextVar("owner", default=None)  # None: each work is its own


class Waiter(Protocol):
    """Waits for a future; if its client leaves first, cancels the future and raises."""

    async def wait(self, done: Future[Any]) -> None: ...


@dataclass(order=True, slots=True)
class _Work:
    """Work in the queue, ordered by its place and then by its arrival.

    done: its outcome. through: resolves when no thread has it any more, or ever will.
    begun: a thread has it. dropped: nobody waits for it, and no thread begins it.
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
        """Do it, on a thread."""
        assert self.do is not None
        try:
            outcome: Callable[[], None] = partial(self.done.set_result, self.do())
        except BaseException as error:  # a panic of a library is none of `Exception`
            outcome = partial(self.done.set_exception, error)
        self.do = None
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            self.loop.call_soon_threadsafe(self._end, outcome)
        del outcome  # it may hold an error, whose traceback holds this frame

    def _end(self, outcome: Callable[[], None]) -> None:
        if not self.done.done():
            outcome()
        self.through.set_result(None)


class Offload:
    """Threads that do what waits for them, of any event loop; they end when they are idle.

    idle_seconds: after which a thread ends.
    waiting: how much work no thread has begun.
    """

    def __init__(self, threads: int, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._most, self._idle_seconds = threads, idle_seconds
        self._threads = self._idle = 0
        self._changed = threading.Condition()
        self.waiting = 0
        self._waiting: list[_Work] = []  # a heap, with work that was dropped: at most half of it
        self._begun = 0  # the place of what was begun last
        self._places: dict[Hashable, int] = {}  # the last place of each owner whose work waits
        self._numbers = count()

    async def run(
        self, do: Callable[[], T], cost: int, owner: Hashable = None, waiter: Waiter | None = None
    ) -> T:
        """Do it on a thread. `cost`: about how many bytes it reads or makes.

        If nobody waits any more, it is dropped from the queue; if a thread has begun it, this
        still returns only when the thread is through, so that what it holds can be counted.
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
            if self.waiting >= self._idle and self._threads < self._most:
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
        """Start a thread; raises `NoProcess` if there are none, and none can be started."""
        # a daemon, because a process that is told to end at once must not wait for it
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
        """Take work that nobody waits for out of the queue."""
        if not done.cancelled():
            return
        with self._changed:
            if work.begun:
                return
            work.dropped = True
            self.waiting -= 1
            if len(self._waiting) > 2 * self.waiting:
                self._waiting = [each for each in self._waiting if not each.dropped]
                heapify(self._waiting)
        work.do = None
        work.through.set_result(None)

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            work.run()
            del work  # it holds what it resulted in

    def _next(self) -> _Work | None:
        """What a thread does next; None: it ends."""
        with self._changed:
            self._idle += 1
            found = self._changed.wait_for(lambda: self.waiting, self._idle_seconds)
            self._idle -= 1
            if not found:
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
    """Wait for it, however often that is cancelled."""
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
    *given: Any,
    cost: int = LONG_BYTES,
    caller: Waiter | None = None,
    pool: Offload = POOL,
) -> T:
    """Do `work` here if it is short, on another thread if it would hold up the event loop.

    cost: about how many bytes it reads or makes. caller: who may leave before it is begun.
    """
    if not long:
        return work(*given)
    return await pool.run(partial(work, *given), cost, owner.get(), caller)


async def run_in_thread(name: str, work: Callable[[], T]) -> T:
    """Do what takes minutes, such as loading a model, on a thread of its own, or `NoProcess`."""
    loop = asyncio.get_running_loop()
    done: Future[T] = loop.create_future()

    def tell(outcome: Callable[[], None]) -> None:
        if not done.done():  # somebody still waits
            outcome()

    def run() -> None:
        try:
            outcome: Callable[[], None] = partial(done.set_result, work())
        except faults() as error:
            outcome = partial(done.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed: a second signal did not wait
            loop.call_soon_threadsafe(tell, outcome)
        del outcome  # it may hold an error, whose traceback holds this frame

    # a daemon, because a process that is told to end at once must not wait for it
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
