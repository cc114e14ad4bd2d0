"""The event loop of this process, on a daemon thread of its own, for all models that it loads."""

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from sruserve.server.errors import ForkedProcess

T = TypeVar("T")

_EXIT_SECONDS = 10.0  # an engine's step is over long before


class EventLoop:
    """Runs coroutines for callers on any other thread.

    on_exit: called on the loop when the interpreter ends; engines must then leave torch, because a
        thread that ends inside a C++ library aborts the process.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.loop = _new_loop()
        self._unawaited: set[asyncio.Task[Any]] = set()
        self.on_exit: set[Callable[[], Awaitable[None]]] = set()
        self._ending = False
        self._thread = threading.Thread(target=self.loop.run_forever, name="sruserve", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise `ForkedProcess` in a process that was forked from the one with this loop.

        While the interpreter ends, a daemon thread waits here for its own end: an error would only
        write a traceback.
        """
        if os.getpid() != self._pid:
            raise ForkedProcess
        if self._ending and threading.current_thread().daemon:
            threading.Event().wait()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine. An exception in the waiting thread, as Ctrl-C, cancels it."""
        assert threading.current_thread() is not self._thread, "the loop would wait for itself"
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # no effect if the error is the coroutine's own
            self.check()
            raise

    async def join(self, work: Coroutine[Any, Any, T]) -> T:
        """The same for a caller on another event loop, whose cancellation cancels the coroutine."""
        if asyncio.get_running_loop() is self.loop:
            return await work
        return await asyncio.wrap_future(self._submit(work))

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            self.check()
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except BaseException:
            work.close()  # otherwise it would warn that nobody awaits it
            raise

    def start_soon(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run a coroutine that nobody waits for, also from a finalizer; never raises."""
        if os.getpid() == self._pid:
            with suppress(RuntimeError):  # the loop has ended with the interpreter
                self.loop.call_soon_threadsafe(self._start, work)

    def _start(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        task = self.loop.create_task(work())
        self._unawaited.add(task)  # the loop itself refers to it weakly
        task.add_done_callback(self._unawaited.discard)

    def end(self) -> None:
        """Let all models end, when the interpreter does."""
        if os.getpid() != self._pid or not self._thread.is_alive():
            return
        self._ending = True
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), self.loop).result(_EXIT_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_EXIT_SECONDS)

    async def _end(self) -> None:
        await asyncio.gather(*[callback() for callback in self.on_exit], return_exceptions=True)


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop  # a call from another thread takes 35 µs instead of 60

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


_loop: EventLoop | None = None
_starting = threading.Lock()


def event_loop() -> EventLoop:
    """The event loop of this process, which the first call starts.

    Raises `ForkedProcess` if a parent process has one: its OpenMP would wait for lost threads.
    """
    global _loop
    if _loop is None:
        with _starting:
            if _loop is None:
                _loop = EventLoop()
                atexit.register(_loop.end)
    _loop.check()
    return _loop
