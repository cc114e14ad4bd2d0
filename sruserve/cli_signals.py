"""Stop a command by SIGTERM as Ctrl-C stops it: what it had begun is removed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_STOPPED = 128 + signal.SIGTERM  # the exit code that shells expect


@contextmanager
def cleaning_up() -> Iterator[None]:
    """In the main thread, end the block by an exception at SIGTERM; ignore further ones."""

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(_STOPPED)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
