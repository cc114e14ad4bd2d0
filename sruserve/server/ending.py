"""End a process that has nothing to finish, or that cannot finish."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

log = logging.getLogger("sruserve.server")

STOPPED, FAILED, EXIT_USAGE = 0, 1, 2
"""The exit codes of a server and of its workers."""

# Time limits of the parts of a stop after the drain, one after the other.
LAST_WORDS_SECONDS = 2.0  # for replies that clients do not read
CLOSE_SECONDS = 2  # uvicorn's, for connections whose clients do not read
GRPC_SECONDS = 1.0  # for messages that are still sent to gRPC clients
STORE_SECONDS = 5.0  # for steps of streams that are still being stored
# After this time the process ends itself by force; the supervisor kills a worker that cannot.
FORCE_SECONDS = LAST_WORDS_SECONDS + CLOSE_SECONDS + GRPC_SECONDS + STORE_SECONDS + 1.0
KILL_SECONDS = FORCE_SECONDS + 2.0


def heeded(number: int) -> bool:
    """Whether a signal is not ignored; `nohup`, for example, ignores SIGHUP."""
    return signal.getsignal(number) is not signal.SIG_IGN


def leave(*_: object) -> None:
    """End a process that has not served any request."""
    log.info("stopped before any request was served")
    exit_now(STOPPED)


def exit_now(code: int) -> NoReturn:
    """End the process at once, but for the lines of its log."""
    for handler in logging.getLogger("sruserve").handlers:
        handler.flush()
    os._exit(code)


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Let a signal end the process at once while the block runs, before any request is served.

    Loading may take long (a GPU's kernels are compiled at the first start), in threads that cannot
    be interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    handlers = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def end_after(seconds: float) -> None:
    """End the process by force after some time, unless it has ended before.

    Never raises, because its caller must still stop the process.
    """

    def end() -> None:
        log.critical("still busy %.0f s after the signal to stop: ending by force", seconds)
        exit_now(FAILED)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:
        log.warning("no thread can be started: if the stop hangs, kill the process")
