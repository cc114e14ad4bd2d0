"""A bounded queue of jobs: event loops fill it, the engine's thread empties it."""

import math
import operator
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from queue import Empty, SimpleQueue
from threading import Lock

from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.job import Job
from sruserve.server.engine.state_cache.cache import CachedState
from sruserve.server.errors import Draining, Overloaded

_MAX_RETRY_SECONDS = 60  # the longest wait that an error asks a client for
_TENANT_SHARE = 7  # a tenant may fill 7 places for each free one: alone, 7/8 of the queue
_REQUESTS, _BYTES, _INPUTS, _TOKENS = range(4)  # the counted resources, in this order
_NOUNS = ("requests", "bytes", "inputs", "tokens")
_SETTINGS = (
    "SRUSERVE_MAX_QUEUE_REQUESTS",
    "SRUSERVE_MAX_QUEUE_BYTES",
    "64 times SRUSERVE_MAX_QUEUE_REQUESTS",
    "1/16 of SRUSERVE_MAX_QUEUE_BYTES",
)


class AdmissionQueue:
    """Jobs, and cached states to free, in the order in which they were sent.

    The receiving thread has the engine's turn, which another thread may borrow while the receiver
    waits for a first message.
    """

    def __init__(self, config: EngineConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._clock = config, clock
        self._messages: SimpleQueue[Job | CachedState | None] = SimpleQueue()
        self._returned: Sequence[Job] = ()  # for the next `receive`
        self._lock = Lock()
        self._turn = Lock()
        self._turn.acquire()  # of the receiving thread
        self._unreceived = 0  # messages that the receiver has not seen while it has the turn
        self._wakes = False  # the receiver waits, and has to return
        self._closed = False
        self._bounds = (
            config.max_queue_requests,
            config.max_queue_bytes,
            config.max_queue_inputs,
            config.max_queue_tokens,
        )
        # One job counts at most as all that a tenant may fill.
        self._max_amounts = [
            max(1, bound * _TENANT_SHARE // (_TENANT_SHARE + 1)) for bound in self._bounds
        ]
        self._small_bytes = config.max_queue_bytes // (8 * config.max_queue_requests)
        self._waiting: tuple[int, ...] = (0, 0, 0, 0)
        self._of_tenant: dict[Hashable, tuple[int, ...]] = {}
        self._gaps: deque[float] = deque(maxlen=64)  # seconds between two consumed jobs
        self._consumed: deque[Sequence[int]] = deque(maxlen=64)  # the amounts of those jobs
        self._gap_start = 0.0  # when the last job was consumed, or the first waiting one submitted

    @property
    def queued(self) -> int:
        """Requests whose input is not consumed yet."""
        return self._waiting[_REQUESTS]

    @property
    def empty(self) -> bool:
        return not self._returned and self._messages.empty()

    def check(self, cost: int, tenant: Hashable) -> None:
        """Raise `Overloaded` if a job of `cost` bytes would not be admitted now."""
        requests, size, inputs, tokens = self._waiting
        bounds = self._bounds
        if not requests or (
            tenant is None
            and requests < bounds[_REQUESTS]
            and size + cost <= bounds[_BYTES]
            and inputs < bounds[_INPUTS]
            and tokens <= bounds[_TOKENS]
        ):
            return
        amounts = self._capped(1, cost, 1, 0)
        self._check(amounts)
        self._check_share(tenant, amounts)

    def submit(self, job: Job) -> None:
        """Queue a job, from any thread; raises `Overloaded`, or `Draining` after `close`."""
        with self._lock:
            self._admit(job)
            self._unreceived += 1
            self._messages.put(job)

    def admit(self, job: Job) -> None:
        """Count a job that the borrower of the turn takes at once; raises as `submit`."""
        with self._lock:
            self._admit(job)

    def _admit(self, job: Job) -> None:
        if self._closed:
            raise Draining("the server is stopping; retry on another replica")
        amounts = job.amounts = self._capped(1, job.input_bytes, len(job.items), job.steps)
        if not job.queues:
            return
        waiting = tuple(map(operator.add, self._waiting, amounts))
        if not all(map(operator.le, waiting, self._bounds)):
            self._check(amounts)
        if job.tenant is not None:
            self._check_share(job.tenant, amounts)
            self._count_own(job.tenant, amounts, 1)
        if not self._waiting[_REQUESTS]:
            self._gap_start = self._clock()
        self._waiting = waiting

    def borrow_turn(self) -> bool:
        """Borrow the receiver's turn, from any thread; False: it does not wait, or has messages.

        Until `return_turn`, the receiver does nothing.
        """
        if self._unreceived or not self._turn.acquire(blocking=False):
            return False
        if self._unreceived:
            self._turn.release()
            return False
        return True

    def return_turn(self) -> None:
        """Give the borrowed turn back."""
        if self._wakes and self._messages.empty():  # the borrower has received what wakes
            self._messages.put(None)
        self._turn.release()

    def drop(self, cached: CachedState) -> None:
        """Have a cached state freed after all jobs submitted so far; from any thread."""
        with self._lock:
            self._unreceived += 1
            self._messages.put(cached)

    def wake(self) -> None:
        """Make a waiting `receive` return."""
        self._wakes = True
        self._messages.put(None)

    def close(self) -> None:
        """Admit no more jobs."""
        with self._lock:
            self._closed = True

    def mark_consumed(self, *jobs: Job) -> None:
        """Stop counting jobs as waiting."""
        now = self._clock()
        with self._lock:
            for job in jobs:
                if not job.queues:
                    continue
                self._waiting = tuple(map(operator.sub, self._waiting, job.amounts))
                if job.tenant is not None:
                    self._count_own(job.tenant, job.amounts, -1)
                self._consumed.append(job.amounts)
                self._gaps.append(now - self._gap_start)
                self._gap_start = now

    def receive(self, timeout: float | None) -> list[Job | CachedState]:
        """Take all messages; wait up to `timeout` seconds (None: forever) for the first one."""
        messages: list[Job | CachedState] = [*self._returned]
        returned, self._returned = len(messages), ()
        try:
            message = self._wait(timeout) if timeout != 0 and not returned else None
            while True:
                if message is not None:
                    messages.append(message)
                message = self._messages.get_nowait()
        except Empty:
            pass
        with self._lock:
            self._unreceived -= len(messages) - returned
        return messages

    def _wait(self, timeout: float | None) -> Job | CachedState | None:
        """Wait for a message, and lend the turn meanwhile; raises `Empty`."""
        self._turn.release()
        try:
            return self._messages.get(timeout=timeout)
        finally:
            self._turn.acquire()
            self._wakes = False

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Have received jobs received again, before all others; for the receiving thread."""
        self._returned = jobs

    def _check(self, amounts: Sequence[int]) -> None:
        """Refuse a request that does not fit; one that would wait alone may have any size."""
        waiting = self._waiting
        if not waiting[_REQUESTS]:
            return
        for resource, bound in enumerate(self._bounds):
            amount = amounts[resource]
            if waiting[resource] + amount > bound and not self._is_small(resource, amount):
                raise self._overloaded(
                    resource,
                    f"{waiting[resource]} {_NOUNS[resource]} are waiting (limit: {bound}, "
                    f"{_SETTINGS[resource]}); retry later, or send smaller requests",
                )

    def _is_small(self, resource: int, amount: int) -> bool:
        """Whether an amount is so small that this resource never refuses it."""
        if resource == _BYTES:
            return amount <= self._small_bytes
        return resource != _REQUESTS and amount <= self._config.small

    def _check_share(self, tenant: Hashable, amounts: Sequence[int]) -> None:
        """Refuse a job of a tenant with a key that would leave others too little of the queue."""
        for resource, own in enumerate(self._of_tenant.get(tenant, ())):
            amount = amounts[resource]
            left = self._bounds[resource] - self._waiting[resource] - amount
            if own + amount > _TENANT_SHARE * left and not self._is_small(resource, amount):
                raise self._overloaded(
                    resource,
                    f"{own} {_NOUNS[resource]} of this API key are waiting, which is its share of "
                    f"the queue ({_SETTINGS[resource]}); retry later, or send smaller requests",
                )

    def _capped(self, *amounts: int) -> tuple[int, ...]:
        """Cap the amounts that a job counts for, so that any job leaves others their share."""
        return tuple(map(min, amounts, self._max_amounts))

    def _count_own(self, tenant: Hashable, amounts: Sequence[int], sign: int) -> None:
        own = self._of_tenant.get(tenant, (0, 0, 0, 0))
        own = tuple(before + sign * amount for before, amount in zip(own, amounts, strict=True))
        self._of_tenant[tenant] = own
        if not own[_REQUESTS]:
            del self._of_tenant[tenant]

    def _overloaded(self, resource: int, message: str) -> Overloaded:
        """An error that asks to retry once half of the queue is consumed, at the recent pace."""
        error = Overloaded(message)
        # copies, since the engine's thread appends to the originals
        gaps, consumed = list(self._gaps), list(self._consumed)
        waiting, queued = self._waiting[resource], max(1, self.queued)
        amount = sum(amounts[resource] for amounts in consumed) + waiting / queued
        pace = (sum(gaps) + self._clock() - self._gap_start) / max(1.0, amount)
        error.retry_after_seconds = min(_MAX_RETRY_SECONDS, max(1, math.ceil(waiting / 2 * pace)))
        return error
