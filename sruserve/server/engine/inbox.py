"""The way in: a bounded queue, filled by event loops, emptied by the engine's thread."""

import math
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock

from sruserve.server.engine.jobs import Job
from sruserve.server.engine.limits import Limits
from sruserve.server.engine.residents import Resident
from sruserve.server.errors import Draining, Overloaded

_MOST_SECONDS = 60  # that anybody is asked to wait before a retry


class Inbox:
    """Jobs, and kept states that are to be dropped, in the order in which they were sent."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._notes: SimpleQueue[Job | Resident | None] = SimpleQueue()
        self._lock = Lock()
        self._bytes, self._closed = 0, False
        self.queued = 0  # requests that wait for their input to be consumed
        self._gaps: deque[float] = deque(maxlen=64)  # from one that was through to the next
        self._since = 0.0  # when the last one was, or when the first of those that wait came

    @property
    def empty(self) -> bool:
        return self._notes.empty()

    def check(self, cost: int) -> None:
        """Raise `Overloaded` if a job of `cost` bytes would not be admitted now."""
        limits = self._limits
        if self.queued >= limits.max_queue_requests:
            raise self._overloaded(
                f"{self.queued} requests are waiting, as many as SRUSERVE_MAX_QUEUE_REQUESTS "
                "allows; retry after a moment"
            )
        if self.queued and self._bytes + cost > limits.max_queue_bytes:
            raise self._overloaded(
                "the requests that wait are as long as SRUSERVE_MAX_QUEUE_BYTES allows; retry "
                "after a moment, or send less at a time"
            )

    def submit(self, job: Job) -> None:
        """Queue a job, from any thread; raises `Overloaded`, or `Draining` after `close`."""
        with self._lock:
            if self._closed:
                raise Draining("the server is stopping; retry on another replica")
            self.check(job.cost)
            if not self.queued:
                self._since = self._clock()
            self.queued += 1
            self._bytes += job.cost
            self._notes.put(job)

    def drop(self, resident: Resident) -> None:
        """Have a kept state forgotten, after all jobs submitted so far; from any thread."""
        self._notes.put(resident)

    def wake(self) -> None:
        """Let a waiting `receive` return."""
        self._notes.put(None)

    def close(self) -> None:
        """Admit nothing more."""
        with self._lock:
            self._closed = True

    def leave(self, job: Job) -> None:
        """A job no longer counts as waiting."""
        with self._lock:
            self.queued -= 1
            self._bytes -= job.cost
            now = self._clock()
            self._gaps.append(now - self._since)
            self._since = now

    def receive(self, patience: float | None) -> list[Job | Resident]:
        """All that is here; first wait so many seconds for something, or forever (None)."""
        found: list[Job | Resident] = []
        while True:
            try:
                note = self._notes.get(patience != 0, patience)
            except Empty:
                return found
            patience = 0
            if note is not None:
                found.append(note)

    def _overloaded(self, message: str) -> Overloaded:
        """Asks to come back when the half of the queue is through, at the pace of the last ones."""
        error = Overloaded(message)
        gaps = list(self._gaps)  # in one go: the engine's thread adds to them
        pace = (sum(gaps) + self._clock() - self._since) / (len(gaps) + 1)
        seconds = math.ceil(self.queued / 2 * pace)
        error.retry_after_seconds = min(_MOST_SECONDS, max(1, seconds))
        return error
