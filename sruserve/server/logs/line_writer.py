"""Write lines to a standard stream on a thread, so that a reader who stops stops nothing else."""

import os
import select
import threading
from collections.abc import Callable
from queue import SimpleQueue

_BATCH_BYTES = 64 << 10  # the capacity of a pipe


class LineWriter:
    """Writes lines in their order. Lines that would wait behind too many others are dropped.

    `write` may interrupt itself, as a signal handler does.

    max_waiting: the number of lines that wait.
    notice: makes the line that tells how many lines were dropped.
    """

    def __init__(self, descriptor: int, max_waiting: int, notice: Callable[[int], str]) -> None:
        self._descriptor, self._max_waiting, self._notice = descriptor, max_waiting, notice
        self._waiting: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        self._lock = threading.RLock()
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def write(self, line: str) -> None:
        """Write a line soon, or drop it. Never waits for the reader."""
        if self._waiting.qsize() >= self._max_waiting:
            self._drop(1)
        else:
            if self._dropped:
                self._waiting.put(self._take_notice())
            self._waiting.put(line.encode("utf-8", "backslashreplace") + b"\n")
        if self._thread is None:
            self._start()

    def flush(self, seconds: float) -> None:
        """Wait until all lines so far are written, at most some time."""
        if self._thread is not None:
            written = threading.Event()
            self._waiting.put(written)
            written.wait(seconds)

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="log", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no thread can be started, now or at the end of the process
                self._thread = None
                while not self._waiting.empty():
                    self._write_batch()

    def _run(self) -> None:
        while True:
            self._write_batch()

    def _write_batch(self) -> None:
        """Wait for a line, and write it with those that follow it."""
        batch, size, written = [], 0, []
        while True:
            item = self._waiting.get()
            if isinstance(item, bytes):
                batch.append(item)
                size += len(item)
            else:
                written.append(item)
            if size >= _BATCH_BYTES or self._waiting.empty():
                break
        if batch and not self._put(b"".join(batch)):
            self._drop(len(batch))
        elif self._dropped and self._waiting.empty():
            self._put(self._take_notice())
        for event in written:
            event.set()

    def _put(self, data: bytes) -> bool:
        """Write bytes, and wait for their reader; False if nobody can read them."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another process has made the stream non-blocking
                select.select([], [self._descriptor], [], 1.0)
            except OSError:
                return False
        return True

    def _take_notice(self) -> bytes:
        """The line that tells how many lines were dropped, which then count no more."""
        with self._lock:
            count, self._dropped = self._dropped, 0
        return self._notice(count).encode() + b"\n" if count else b""

    def _drop(self, count: int) -> None:
        with self._lock:
            self._dropped += count
