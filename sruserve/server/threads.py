"""Threads of their own for what takes long."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from sruserve.server.errors import faults

T = TypeVar("T")


async def in_own_thread(name: str, work: Callable[[], T]) -> T:
    """Do what takes long without taking one of the executor's threads from requests."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

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

    # a daemon, because a process that is told to end at once must not wait for it
    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
