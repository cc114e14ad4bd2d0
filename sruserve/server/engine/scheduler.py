"""Decide what the next step computes. It never touches a tensor."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Lock

from sruserve.model.text import Codec
from sruserve.server.engine.jobs import Job
from sruserve.server.engine.limits import Limits
from sruserve.server.engine.streams import Stream, streams_of
from sruserve.server.errors import (
    DeadlineExceeded,
    Draining,
    EngineFailure,
    Overloaded,
    ServeError,
)

_DECODE_SHARE = 8  # while streams decode, inputs take at most 1/8 of a step, so none stalls


@dataclass(slots=True)
class Batch:
    """One step: a token for each decoding stream, then runs of inputs (stream, count)."""

    decodes: list[Stream]
    inputs: list[tuple[Stream, int]]


@dataclass(slots=True)
class _Open:
    """A job that is here: its streams without a last result, and how many have inputs left."""

    streams: dict[Stream, None] = field(default_factory=dict)
    unread: int = 0


class Scheduler:
    """The bounded queue, and the streams that run.

    max_streams: how many streams may hold a state at a time.
    whole: inputs cannot be cut (a bidirectional network).
    fail: called with a job that ends early, and why (None: its client left); it must `drop` it.
    """

    def __init__(
        self,
        limits: Limits,
        max_streams: int,
        whole: bool,
        codec: Codec | None,
        fail: Callable[[Job, ServeError | None], None],
    ) -> None:
        self._limits, self._max_streams, self._whole = limits, max_streams, whole
        self._codec, self._fail = codec, fail
        self._inbox: SimpleQueue[Job | None] = SimpleQueue()
        self._jobs: dict[Job, _Open] = {}
        self._waiting: deque[Stream] = deque()
        self._stale = False  # some that wait belong to dropped jobs
        self._decoding: dict[Stream, None] = {}
        self._lock = Lock()
        self._queued, self._queued_bytes, self._closed = 0, 0, False

    @property
    def queued(self) -> int:
        """Requests that wait for their input to be consumed."""
        return self._queued

    @property
    def running(self) -> int:
        """Sequences without a last result."""
        return len(self._decoding) + len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether there is any job."""
        return bool(self._jobs) or not self._inbox.empty()

    @property
    def contended(self) -> bool:
        """Whether somebody waits besides the streams that decode."""
        return bool(self._waiting) or not self._inbox.empty()

    def check(self, cost: int) -> None:
        """Raise `Overloaded` if a job of `cost` bytes would not be admitted now."""
        limits = self._limits
        if self._queued >= limits.max_queue_requests:
            raise Overloaded(
                f"{self._queued} requests are waiting, as many as SRUSERVE_MAX_QUEUE_REQUESTS "
                "allows; retry after a moment"
            )
        if self._queued and self._queued_bytes + cost > limits.max_queue_bytes:
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
            self._queued += 1
            self._queued_bytes += job.cost
            self._inbox.put(job)

    def wake(self) -> None:
        """Let a waiting `next_batch` return."""
        self._inbox.put(None)

    def close(self) -> None:
        """Admit nothing more: what `jobs` gives after this is all there will ever be."""
        with self._lock:
            self._closed = True

    def next_batch(self) -> Batch:
        """What to compute next; waits while there is nothing. Empty after `wake`."""
        self._receive(wait=not self._jobs)
        self._end_early()
        if self._stale:
            self._waiting = deque(stream for stream in self._waiting if not stream.dropped)
            self._stale = False
        decodes = list(self._decoding)
        if len(decodes) > self._limits.max_batch_tokens:
            decodes = decodes[: self._limits.max_batch_tokens]
            for stream in decodes:  # the others go first next time
                del self._decoding[stream]
            self._decoding |= dict.fromkeys(decodes)
        budget = self._limits.max_batch_tokens - len(decodes)
        if decodes:
            budget = max(min(budget, self._limits.max_batch_tokens // _DECODE_SHARE), 1)
        return Batch(decodes, self._share(budget) if self._waiting else [])

    def settle(self, batch: Batch) -> None:
        """Put streams that have inputs left back in their places; the others leave the queue."""
        self._waiting.extendleft(s for s, _ in reversed(batch.inputs) if s.remaining)
        for stream, _ in batch.inputs:
            if not stream.remaining:
                self._leave(stream.job)

    def decode(self, stream: Stream) -> None:
        """From now on the stream takes a token in every step."""
        self._decoding[stream] = None

    def finish(self, stream: Stream) -> bool:
        """A stream has its last result; returns whether it was its job's last stream."""
        self._decoding.pop(stream, None)
        streams = self._jobs[stream.job].streams
        del streams[stream]
        if not streams:
            del self._jobs[stream.job]
        return not streams

    def drop(self, job: Job) -> list[Stream]:
        """Forget a job and return its streams without a last result."""
        entry = self._jobs.pop(job, None)
        if entry is None:
            return []
        for stream in entry.streams:
            stream.dropped = True
            self._decoding.pop(stream, None)
        if entry.unread:
            self._leave_queue(job)
            self._stale = True
        return list(entry.streams)

    def jobs(self) -> list[Job]:
        """Every job that is here."""
        self._receive(wait=False)
        return list(self._jobs)

    def _receive(self, wait: bool) -> None:
        """Take jobs out of the inbox; with `wait`, at least one (or a wake)."""
        while True:
            try:
                job = self._inbox.get(block=wait)
            except Empty:
                return
            wait = False
            if job is None:
                continue
            entry = self._jobs[job] = _Open(unread=len(job.items))
            try:
                streams = streams_of(job, self._codec)
            except Exception as error:  # out of memory, say: nobody else is to suffer
                self._fail(job, EngineFailure(f"the request could not be prepared: {error}"))
                continue
            entry.streams = dict.fromkeys(streams)
            self._waiting.extend(streams)

    def _end_early(self) -> None:
        """End the jobs whose client left, and those that waited too long for their first step."""
        now = time.monotonic()
        ended: dict[Job, ServeError | None] = {}
        for job in self._jobs:
            if job.withdrawn:
                ended[job] = None
            elif job.deadline and not job.begun and now > job.deadline:
                ended[job] = DeadlineExceeded("the request waited too long in the queue; retry")
        for job, error in ended.items():
            self._fail(job, error)

    def _share(self, budget: int) -> list[tuple[Stream, int]]:
        """Take streams out of the queue for a step and split `budget` tokens among them.

        Each gets a fair part, and what is left over goes to the first ones.
        """
        room = self._max_streams - len(self._decoding)
        if self._whole:
            taken: list[tuple[Stream, int]] = []
            while self._waiting and len(taken) < room and self._waiting[0].remaining <= budget:
                stream = self._waiting.popleft()
                budget -= stream.remaining
                taken.append((stream, stream.remaining))
            return taken
        chosen = [self._waiting.popleft() for _ in range(min(len(self._waiting), room, budget))]
        fair = max(1, budget // max(1, len(chosen)))
        counts = [min(stream.remaining, fair) for stream in chosen]
        rest = budget - sum(counts)
        for i, stream in enumerate(chosen):
            if rest <= 0:
                break
            more = min(stream.remaining - counts[i], rest)
            counts[i] += more
            rest -= more
        return list(zip(chosen, counts, strict=True))

    def _leave(self, job: Job) -> None:
        """One stream of a job has consumed its inputs; after the last, the job leaves the queue."""
        entry = self._jobs[job]
        entry.unread -= 1
        if not entry.unread:
            self._leave_queue(job)

    def _leave_queue(self, job: Job) -> None:
        with self._lock:
            self._queued -= 1
            self._queued_bytes -= job.cost
