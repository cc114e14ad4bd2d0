"""Exclude the other writers of a pipe, such as workers, while a line is written."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager


class StreamLock:
    """A lock of a pipe, between all processes and threads that write to it.

    Files and sockets need none: they take long lines at once.
    """

    def __init__(self, descriptor: int) -> None:
        self._own: int | None = None
        # Workers inherit one description of the pipe, so each needs its own for `flock`. To open
        # a pipe that nobody reads would otherwise wait for ever.
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                self._own = os.open(f"/dev/fd/{descriptor}", flags)
        except OSError:  # nobody reads it, or the descriptor is that of another user
            return

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock. The end of the process releases it too."""
        if self._own is None:
            yield
            return
        fcntl.flock(self._own, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._own, fcntl.LOCK_UN)
