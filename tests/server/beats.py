"""Count the beats that a server misses: on its event loop, and for want of the interpreter lock.

Neither counts what other processes take: the loop is measured in its thread's processor time, and
from the time that a beating thread waits, what the process's threads waited for a processor is
taken off.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sruserve.server.app import Application

BEAT_SECONDS = 0.005
_THREADS = Path("/proc/self/task")


class Beats:
    """The longest times, in seconds, between two beats since `reset`."""

    def __init__(self) -> None:
        self.loop = self.lock = 0.0
        self._over = threading.Event()
        self._task: asyncio.Task[None] | None = None

    def reset(self) -> None:
        self.loop = self.lock = 0.0

    async def beat_on_the_loop(self) -> None:
        while not self._over.is_set():
            before = time.thread_time()
            await asyncio.sleep(BEAT_SECONDS)
            self.loop = max(self.loop, time.thread_time() - before)

    def beat_on_a_thread(self) -> None:
        while not self._over.is_set():
            begin, busy, delays = time.perf_counter(), time.process_time(), _run_delays()
            time.sleep(BEAT_SECONDS)
            waited = time.perf_counter() - begin - BEAT_SECONDS
            if waited > self.lock:
                now = _run_delays()
                delay = sum(now[each] - delays.get(each, 0) for each in now)
                # who holds the lock is busy, or waits for a processor
                self.lock = max(self.lock, min(waited - delay / 1e9, time.process_time() - busy))

    def stop(self) -> None:
        self._over.set()


@contextmanager
def beating() -> Iterator[Beats]:
    """The beats of the servers that get a request in this block."""
    beats, answer = Beats(), Application.__call__

    async def first(self: Application, scope: Any, receive: Any, send: Any) -> None:
        if beats._task is None:
            beats._task = asyncio.create_task(beats.beat_on_the_loop())
        await answer(self, scope, receive, send)

    thread = threading.Thread(target=beats.beat_on_a_thread)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Application, "__call__", first)
            yield beats
    finally:
        beats.stop()
        thread.join()


def _run_delays() -> dict[str, int]:
    """How many nanoseconds each thread has waited for a processor."""
    found = {}
    for thread in _THREADS.iterdir():
        try:
            found[thread.name] = int((thread / "schedstat").read_text().split()[1])
        except (OSError, IndexError):  # it has ended
            continue
    return found
