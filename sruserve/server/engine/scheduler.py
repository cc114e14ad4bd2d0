"""Decide what the next step computes. It never touches a tensor."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

from sruserve.kernels.memory import is_out_of_memory
from sruserve.model.text import Codec
from sruserve.server.engine.batch import Batch, shares
from sruserve.server.engine.inbox import Inbox
from sruserve.server.engine.jobs import Job
from sruserve.server.engine.limits import Limits
from sruserve.server.engine.states import States
from sruserve.server.engine.streams import Stream, streams_of
from sruserve.server.errors import (
    DeadlineExceeded,
    EngineFailure,
    OutOfDeviceMemory,
    Overloaded,
    ServeError,
    faults,
)

_GLANCE_SECONDS = 20e-6  # between two looks, while all that there is to do is on its way
_DECODE_SHARE = 8  # while streams decode, inputs take at most 1/8 of a step, so none stalls


@dataclass(slots=True)
class _Open:
    """A job that is here: its streams without a last result, and how many have inputs left."""

    streams: dict[Stream, None] = field(default_factory=dict)
    unread: int = 0


class Scheduler:
    """The streams that wait, and those that run.

    states: says how many streams may hold a state at a time, and brings what they start from.
    whole: inputs cannot be cut.
    fail: called with a job that ends early, and why (None: its client left); it must `drop` it.
    """

    def __init__(
        self,
        limits: Limits,
        inbox: Inbox,
        states: States,
        whole: bool,
        codec: Codec | None,
        fail: Callable[[Job, ServeError | None], None],
    ) -> None:
        self._limits, self._inbox, self._states, self._whole = limits, inbox, states, whole
        self._codec, self._fail = codec, fail
        self._jobs: dict[Job, _Open] = {}
        self._waiting: list[Stream] = []  # by priority
        self._admitted: deque[Stream] = deque()  # may hold a state, and have inputs left
        self._arriving: list[Stream] = []  # of those
        self._stale = False  # some of these belong to dropped jobs
        self._idle = False  # the last batch was empty
        self._decoding: dict[Stream, None] = {}

    @property
    def running(self) -> int:
        """Sequences without a last result."""
        return self.admitted + len(self._waiting)

    @property
    def admitted(self) -> int:
        """Those of them that may hold a state."""
        return len(self._decoding) + len(self._admitted)

    @property
    def busy(self) -> bool:
        """Whether there is any job."""
        return bool(self._jobs) or not self._inbox.empty

    @property
    def contended(self) -> bool:
        """Whether somebody waits besides the streams that decode."""
        return bool(self._waiting or self._admitted) or not self._inbox.empty

    def next_batch(self) -> Batch:
        """What to compute next; waits while there is nothing. Empty after `wake`."""
        if self._jobs or self._states.busy:
            self._receive(_GLANCE_SECONDS if self._idle else 0)
        else:
            self._receive(None)
        self._end_early()
        self._states.make_room(self.running)
        self._admit()
        self._land()
        self._forget_dropped()
        decodes = list(self._decoding)
        if len(decodes) > self._limits.max_batch_tokens:
            decodes = decodes[: self._limits.max_batch_tokens]
            for stream in decodes:  # the others go first next time
                del self._decoding[stream]
            self._decoding |= dict.fromkeys(decodes)
        budget = self._limits.max_batch_tokens - len(decodes)
        if decodes:
            budget = max(min(budget, self._limits.max_batch_tokens // _DECODE_SHARE), 1)
        batch = Batch(decodes, self._share(budget) if self._admitted else [])
        self._idle = not len(batch)
        return batch

    def settle(self, batch: Batch) -> None:
        """Put streams that have inputs left back in their places; the others leave the queue."""
        self._admitted.extendleft(s for s, _ in reversed(batch.inputs) if s.remaining)
        for stream, _ in batch.inputs:
            if not stream.remaining:
                self._leave(stream.job)

    def decode(self, stream: Stream) -> None:
        """From now on the stream takes a token in every step."""
        self._decoding[stream] = None

    def retire(self, stream: Stream) -> None:
        """The stream takes part in no more steps."""
        self._decoding.pop(stream, None)

    def decoding(self, job: Job) -> list[Stream]:
        """A job's streams that take tokens; none where some have not read all of their inputs."""
        entry = self._jobs[job]
        return [] if entry.unread else [s for s in entry.streams if s in self._decoding]

    def finish(self, stream: Stream) -> bool:
        """A stream has its last result; returns whether it was its job's last stream."""
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
            self._inbox.leave(job)
            self._stale = True
        return list(entry.streams)

    def jobs(self) -> list[Job]:
        """Every job that is here."""
        self._receive(0)
        return list(self._jobs)

    def _receive(self, patience: float | None) -> None:
        for note in self._inbox.receive(patience):
            if isinstance(note, Job):
                self._open(note)
            else:
                self._states.residents.drop(note)

    def _open(self, job: Job) -> None:
        entry = self._jobs[job] = _Open(unread=len(job.items))
        try:
            streams = streams_of(job, self._codec)
            self._states.receive(streams)
        except ServeError as error:
            self._fail(job, error)
        except faults() as error:  # nobody else is to suffer
            if is_out_of_memory(error):
                self._fail(job, OutOfDeviceMemory())
            else:
                self._fail(job, EngineFailure(f"the request could not be prepared: {error}"))
        else:
            entry.streams = dict.fromkeys(streams)
            self._waiting.extend(streams)
            self._waiting.sort(key=_priority)  # equal ones keep their order

    def _admit(self) -> None:
        """Let the first ones that wait hold a state, as many as there is room for."""
        if not self._waiting:
            return
        room = self._states.room - self.admitted
        if room <= 0:
            if not (self._decoding or self._admitted or self._states.busy):  # nothing will change
                self._fail(
                    self._waiting[0].job,
                    Overloaded(
                        "kept streams fill SRUSERVE_STATE_POOL_BYTES, and "
                        "SRUSERVE_STATE_HOST_BYTES has no room for them: drop some"
                    ),
                )
            return
        entering, self._waiting = self._waiting[:room], self._waiting[room:]
        self._admitted = deque(sorted((*self._admitted, *entering), key=_priority))
        self._states.admit([stream for stream in entering if not stream.dropped], self._fail)
        self._arriving += [stream for stream in entering if stream.arrival is not None]

    def _land(self) -> None:
        """See which states have arrived, and end the jobs of those that never will."""
        arriving, self._arriving = self._arriving, []
        for stream in arriving:
            try:
                if not stream.dropped and not self._states.arrived(stream):
                    self._arriving.append(stream)
            except ServeError as error:
                self._fail(stream.job, error)

    def _forget_dropped(self) -> None:
        if self._stale:
            self._waiting = [stream for stream in self._waiting if not stream.dropped]
            self._admitted = deque(stream for stream in self._admitted if not stream.dropped)
            self._stale = False

    def _end_early(self) -> None:
        """End the jobs whose client left, and those that waited too long for their first step."""
        now = time.monotonic()
        ended: dict[Job, ServeError | None] = {}
        for job in self._jobs:
            if job.withdrawn:
                ended[job] = None
            elif job.deadline and not job.begun and now > job.deadline:
                ended[job] = DeadlineExceeded()
        for job, error in ended.items():
            self._fail(job, error)

    def _share(self, budget: int) -> list[tuple[Stream, int]]:
        """Take streams out of the queue for a step and split `budget` tokens among them.

        Streams of a smaller priority number take all that they can before others get any.
        """
        if self._whole:
            taken: list[tuple[Stream, int]] = []
            while self._admitted and self._admitted[0].remaining <= budget:
                stream = self._admitted.popleft()
                budget -= stream.remaining
                taken.append((stream, stream.remaining))
            return taken
        taken = []
        chosen = sorted(self._choose(budget), key=_priority)
        for _, group in groupby(chosen, key=_priority):
            equals = list(group)
            if budget > 0:
                parts = shares(equals, budget)
                budget -= sum(count for _, count in parts)
                taken += parts
            else:
                self._admitted.extend(equals)
        return taken

    def _choose(self, most: int) -> list[Stream]:
        """Take admitted streams out of the queue; whose state is still arriving stays in it.

        Where nothing else can run, those are taken, too: the device waits for their states then.
        """
        chosen: list[Stream] = []
        late: list[Stream] = []
        while self._admitted and len(chosen) < most:
            stream = self._admitted.popleft()
            (chosen if stream.arrival is None else late).append(stream)
        if not chosen and not self._decoding:
            launched = [s.arrival is not None and s.arrival.launched for s in late]
            count = min(most, launched.index(False) if False in launched else len(late))
            chosen, late = late[:count], late[count:]
        self._admitted.extendleft(reversed(late))
        return chosen

    def _leave(self, job: Job) -> None:
        """One stream of a job has consumed its inputs; after the last, the job leaves the queue."""
        entry = self._jobs[job]
        entry.unread -= 1
        if not entry.unread:
            self._inbox.leave(job)


def _priority(stream: Stream) -> int:
    return stream.job.priority
