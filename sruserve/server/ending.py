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

# What a stop may take after the drain, one after the other.
LAST_WORDS_SECONDS = 2.0  # a client that does not read its reply holds the end up for no longer
CLOSE_SECONDS = 2  # uvicorn's, for connections whose clients do not read
GRPC_SECONDS = 1.0  # for what is still on its way to gRPC's clients
STORE_SECONDS = 5.0  # for steps of streams that are still being stored
# What hangs for longer is ended by force, and a worker that cannot even do that is killed.
FORCE_SECONDS = LAST_WORDS_SECONDS + CLOSE_SECONDS + GRPC_SECONDS + STORE_SECONDS + 1.0
KILL_SECONDS = FORCE_SECONDS + 2.0


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
    """End the process by force when so much time has passed: it should have ended before.

    Never raises: who calls this has an end to begin.
    """

    def end() -> None:
        log.critical("still busy %.0f s after the signal to stop: ending by force", seconds)
        os._exit(FAILED)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:
        log.warning("no thread can be started: if the stop hangs, nothing here ends it by force")
