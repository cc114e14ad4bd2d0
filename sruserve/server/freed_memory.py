"""Give freed memory back to the system: glibc keeps it in each thread's arena, else for good."""

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_STATM = Path("/proc/self/statm")
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_SPARE_BYTES = 128 << 20  # that may be free for the next requests
_SECONDS = 60.0  # between two calls, which take about 40 ms of a core for each 700 MB
_MAX_SECONDS = 3600.0  # the same once the memory of a larger process is in use


def resident_bytes() -> int:
    """The memory of this process; 0 where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return int(_STATM.read_text().split()[1]) * _PAGE
    return 0


def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's function; None: the process has another allocator."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return trim


class FreedMemory:
    """Trims the heap while the process is larger than the least that a trim has left of it.

    After a trim that gives little back, it waits twice as long, up to an hour, unless the process
    has grown since: then there is new memory to give back.

    A flood of heads on gRPC's port, for example, leaves hundreds of megabytes between blocks that
    are still in use, and another flood takes more.

    spare_bytes: how much larger it may be.
    """

    def __init__(self, spare_bytes: int = _SPARE_BYTES) -> None:
        self._spare_bytes, self._trim = spare_bytes, _malloc_trim()
        self._least, self._left = 0, 0  # sizes: after the best trim, and after the last one
        self._next, self._trimmed, self._seconds = 0.0, -_MAX_SECONDS, _SECONDS

    def look(self, now: float) -> threading.Thread | None:
        """Trim on a thread of its own, at most once a minute. now: on `time.monotonic()`."""
        if now < self._next or self._trim is None:
            return None
        self._next = now + _SECONDS
        size = resident_bytes()
        self._least = self._least or size
        if size < self._least + self._spare_bytes:
            return None
        if size >= self._left + self._spare_bytes:
            self._seconds = _SECONDS
        if now < self._trimmed + self._seconds:
            return None
        thread = threading.Thread(target=self._trim_now, name="freed memory", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread can be started now
            return None
        self._trimmed = now
        return thread

    def _trim_now(self) -> None:
        assert self._trim is not None
        before = resident_bytes()
        self._trim(0)
        size = self._left = resident_bytes()
        self._least = min(self._least, size)
        is_useful = before - size >= self._spare_bytes
        self._seconds = _SECONDS if is_useful else min(2 * self._seconds, _MAX_SECONDS)
