"""Write lines to a standard stream on a thread, so that a reader who stops stops nothing else."""

import os
import select
import threading
from collections.abc import Callable
from queue import SimpleQueue

from sruserve.server.logs.stream_lock import StreamLock

# A pipe takes as many bytes at once. Bytes of another process may break a longer write.
_BATCH_BYTES = select.PIPE_BUF


class LineWriter:
    """Writes lines in their order. Lines that would wait for too many others are dropped.

    Those of several writers to one stream, in any process, do not break each other.

    `write` may interrupt itself, as a signal handler does.

    max_waiting: the number of lines that wait.
    notice: makes the line that tells how many lines were dropped.
    on_change: called with the error when lines begin to be lost, for example because the disk is
        full, and with None when they are written again.
    """

    def __init__(
        self,
        descriptor: int,
        max_waiting: int,
        notice: Callable[[int], str],
        on_change: Callable[[OSError | None], object] = lambda _: None,
    ) -> None:
        self._descriptor, self._max_waiting, self._notice = descriptor, max_waiting, notice
        self._on_change, self._is_failing = on_change, False
        self._waiting: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        self._lock = threading.RLock()
        self._stream: StreamLock | None = None
        self._next: bytes | None = None  # a line that the last batch had no room for
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
                while self._next or not self._waiting.empty():
                    self._write_batch()

    def _run(self) -> None:
        while True:
            self._write_batch()

    def _write_batch(self) -> None:
        """Wait for a line, and write it with those that follow it."""
        batch: list[bytes] = []
        written: list[threading.Event] = []
        size = 0
        while True:
            item = self._next or self._waiting.get()
            self._next = None
            if not isinstance(item, bytes):
                written.append(item)
            elif batch and size + len(item) > _BATCH_BYTES:
                self._next = item
                break
            else:
                batch.append(item)
                size += len(item)
            if self._waiting.empty():
                break
        if batch and not self._put(b"".join(batch)):
            self._drop(len(batch))
        elif self._dropped and self._next is None and self._waiting.empty():
            self._put(self._take_notice())
        for event in written:
            event.set()

    def _put(self, data: bytes) -> bool:
        """Write bytes, and wait for their reader; False if nobody can read them."""
        self._stream = self._stream or StreamLock(self._descriptor)
        with self._stream.hold():
            error = self._put_alone(data)
        if self._is_failing != (error is not None):
            self._is_failing = error is not None
            self._on_change(error)
        return error is None

    def _put_alone(self, data: bytes) -> OSError | None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another process has made the stream non-blocking
                select.select([], [self._descriptor], [], 1.0)
            except OSError as error:
                return error
        return None

    def _take_notice(self) -> bytes:
        """The line that tells how many lines were dropped, which then count no more."""
        with self._lock:
            count, self._dropped = self._dropped, 0
        return self._notice(count).encode() + b"\n" if count else b""

    def _drop(self, count: int) -> None:
        with self._lock:
            self._dropped += count
