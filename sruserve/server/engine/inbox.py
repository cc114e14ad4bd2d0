"""The way in: a bounded queue, filled by event loops, emptied by the engine's thread."""

from queue import Empty, SimpleQueue
from threading import Lock

from sruserve.server.engine.jobs import Job
from sruserve.server.engine.limits import Limits
from sruserve.server.engine.residents import Resident
from sruserve.server.errors import Draining, Overloaded


class Inbox:
    """Jobs, and kept states that are to be dropped, in the order in which they were sent."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._notes: SimpleQueue[Job | Resident | None] = SimpleQueue()
        self._lock = Lock()
        self._bytes, self._closed = 0, False
        self.queued = 0  # requests that wait for their input to be consumed

    @property
    def empty(self) -> bool:
        return self._notes.empty()

    def check(self, cost: int) -> None:
        """Raise `Overloaded` if a job of `cost` bytes would not be admitted now."""
        limits = self._limits
        if self.queued >= limits.max_queue_requests:
            raise Overloaded(
                f"{self.queued} requests are waiting, as many as SRUSERVE_MAX_QUEUE_REQUESTS "
                "allows; retry after a moment"
            )
        if self.queued and self._bytes + cost > limits.max_queue_bytes:
            raise Overloaded(
                "the requests that wait are as long as SRUSERVE_MAX_QUEUE_BYTES allows; retry "
                "after a moment, or send less at a time"
            )

    def submit(self, job: Job) -> None:
        """Queue a job, from any thread; raises `Overloaded`, or `Draining` after `close`."""
        with self._lock:
            if self._closed:
                raise Draining("the server is stopping; retry on another replica")
            self.check(job.cost)
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
