"""How a process ends that cannot finish, or has nothing to finish."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("sruserve.server")

STOPPED, FAILED, MISUSED = 0, 1, 2
"""The exit codes of a server and of its workers."""


def heeded(number: int) -> bool:
    """Whether nobody, as `nohup` does, wants a signal to be ignored."""
    return signal.getsignal(number) is not signal.SIG_IGN


def leave(*_: object) -> None:
    """End a process that has served nobody yet."""
    log.info("told to stop before anything was served")
    os._exit(STOPPED)


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """While nobody is served there is nothing to finish: a signal ends the process.

    Loading may take long (a GPU's kernels are compiled at the first start), in threads that cannot
    be interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_after(seconds: float) -> None:
    """End the process by force when so much time has passed: it should have ended before."""

    def end() -> None:
        log.critical("still busy %.0f s after the signal to stop: ending by force", seconds)
        os._exit(FAILED)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
