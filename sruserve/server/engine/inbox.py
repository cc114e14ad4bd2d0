"""The way in: a bounded queue, filled by event loops, emptied by the engine's thread."""

import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from queue import Empty, SimpleQueue
from threading import Lock

from sruserve.server.engine.jobs import Job
from sruserve.server.engine.limits import Limits
from sruserve.server.engine.residents import Resident
from sruserve.server.errors import Draining, Overloaded

_MOST_SECONDS = 60  # that anybody is asked to wait before a retry
_SHARE = 7  # a tenant may fill 7 places for each one that it leaves: alone, 7/8 of the queue
_REQUESTS, _BYTES, _INPUTS, _TOKENS = range(4)  # what is counted, in this order
_NOUNS = ("requests", "bytes", "inputs", "tokens")
_SETTINGS = (
    "SRUSERVE_MAX_QUEUE_REQUESTS",
    "SRUSERVE_MAX_QUEUE_BYTES",
    "64 times SRUSERVE_MAX_QUEUE_REQUESTS",
    "1/16 of SRUSERVE_MAX_QUEUE_BYTES",
)


class Inbox:
    """Jobs, and kept states that are to be dropped, in the order in which they were sent."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._notes: SimpleQueue[Job | Resident | None] = SimpleQueue()
        self._lock = Lock()
        self._closed = False
        self._bounds = (
            limits.max_queue_requests,
            limits.max_queue_bytes,
            limits.max_queue_inputs,
            limits.max_queue_tokens,
        )
        # what one job counts at most: all that a tenant may fill
        self._most = [max(1, bound * _SHARE // (_SHARE + 1)) for bound in self._bounds]
        self._few_bytes = limits.max_queue_bytes // (8 * limits.max_queue_requests)
        self._waiting = [0, 0, 0, 0]
        self._of_tenant: dict[Hashable, tuple[int, ...]] = {}
        self._gaps: deque[float] = deque(maxlen=64)  # from one that was through to the next
        self._left: deque[Sequence[int]] = deque(maxlen=64)  # what those amounted to
        self._since = 0.0  # when the last one was, or when the first of those that wait came

    @property
    def queued(self) -> int:
        """Requests that wait for their input to be consumed."""
        return self._waiting[_REQUESTS]

    @property
    def empty(self) -> bool:
        return self._notes.empty()

    def check(self, cost: int, tenant: Hashable, inputs: int) -> None:
        """Raise `Overloaded` if a job of `cost` bytes would not be admitted now."""
        if not self.queued:
            return
        amounts = self._counted(1, cost, inputs, 0)
        self._check(amounts)
        self._check_share(tenant, amounts)

    def submit(self, job: Job) -> None:
        """Queue a job, from any thread; raises `Overloaded`, or `Draining` after `close`."""
        amounts = self._amounts(job)
        with self._lock:
            if self._closed:
                raise Draining("the server is stopping; retry on another replica")
            self._check(amounts)
            self._check_share(job.tenant, amounts)
            if not self.queued:
                self._since = self._clock()
            self._count(job.tenant, amounts, 1)
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
        amounts = self._amounts(job)
        with self._lock:
            self._count(job.tenant, amounts, -1)
            now = self._clock()
            self._left.append(amounts)
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

    def _check(self, amounts: Sequence[int]) -> None:
        """Refuse what does not fit; a request that is alone may be of any size."""
        waiting = self._waiting
        if not waiting[_REQUESTS]:
            return
        for which, bound in enumerate(self._bounds):
            if waiting[which] + amounts[which] > bound and not self._few(which, amounts[which]):
                raise self._overloaded(
                    which,
                    f"{waiting[which]} {_NOUNS[which]} are waiting, and {bound} may wait "
                    f"({_SETTINGS[which]}); retry later, or send less at a time",
                )

    def _few(self, which: int, amount: int) -> bool:
        """Whether it is so little that it always comes in, and others cannot keep it out."""
        if which == _BYTES:
            return amount <= self._few_bytes
        return which != _REQUESTS and amount <= self._limits.small

    def _check_share(self, tenant: Hashable, amounts: Sequence[int]) -> None:
        """Refuse a tenant with a key that would leave too little of the queue to the others."""
        for which, held in enumerate(self._of_tenant.get(tenant, ())):
            amount = amounts[which]
            left = self._bounds[which] - self._waiting[which] - amount
            if held + amount > _SHARE * left and not self._few(which, amount):
                raise self._overloaded(
                    which,
                    f"{held} {_NOUNS[which]} of this API key are waiting, its part of the queue "
                    f"({_SETTINGS[which]}); retry later, or send less at a time",
                )

    def _amounts(self, job: Job) -> tuple[int, ...]:
        return self._counted(1, job.cost, len(job.items), job.steps)

    def _counted(self, *amounts: int) -> tuple[int, ...]:
        """What a job counts, however much more it brings: it leaves the others their part."""
        return tuple(map(min, amounts, self._most))

    def _count(self, tenant: Hashable, amounts: Sequence[int], sign: int) -> None:
        waiting = self._waiting
        for which in range(4):
            waiting[which] += sign * amounts[which]
        if tenant is None:
            return
        own = self._of_tenant.get(tenant, (0, 0, 0, 0))
        own = tuple(held + sign * more for held, more in zip(own, amounts, strict=True))
        self._of_tenant[tenant] = own
        if not own[_REQUESTS]:
            del self._of_tenant[tenant]

    def _overloaded(self, which: int, message: str) -> Overloaded:
        """Asks to come back when the half of the queue is through, at the pace of the last ones."""
        error = Overloaded(message)
        gaps, left = list(self._gaps), list(self._left)  # the engine's thread adds to them
        waiting, queued = self._waiting[which], max(1, self.queued)
        through = sum(amounts[which] for amounts in left) + waiting / queued
        pace = (sum(gaps) + self._clock() - self._since) / max(1.0, through)
        error.retry_after_seconds = min(_MOST_SECONDS, max(1, math.ceil(waiting / 2 * pace)))
        return error
