"""Decide what the next step computes. It never touches a tensor."""

import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from sruserve.kernels.memory import is_out_of_memory
from sruserve.model.text import Codec
from sruserve.server.engine.admitted import Admitted
from sruserve.server.engine.batch import Batch
from sruserve.server.engine.constrained import TextPosition
from sruserve.server.engine.decoders import Decoders
from sruserve.server.engine.fair_queue import FairQueue
from sruserve.server.engine.fair_shares import cost_of
from sruserve.server.engine.inbox import Inbox
from sruserve.server.engine.jobs import Job
from sruserve.server.engine.limits import Limits
from sruserve.server.engine.states import States
from sruserve.server.engine.step_time import StepTime
from sruserve.server.engine.streams import Stream, positions_of, streams_of
from sruserve.server.errors import (
    DeadlineExceeded,
    EngineFailure,
    OutOfDeviceMemory,
    Overloaded,
    ServeError,
    faults,
)

_GLANCE_SECONDS = 20e-6  # between two looks, while all that there is to do is on its way
_LOOK_SECONDS = 500e-6  # the same, while texts wait for their grammars
_DECODE_SHARE = 8  # while streams decode, inputs take at most 1/8 of a step, so none stalls
_DECODES, _READS = 64, 128  # rows that a step may have of each, however slow the device is
_AHEAD = 2  # begin the streams of so many steps, so that their states arrive during the first
_MANY_ITEMS = 16  # making the streams of a job with more takes time: of one such job in a step


@dataclass(slots=True)
class _Open:
    """A job that is here: its streams without a last result, and how many have inputs left.

    unopened: its streams are not made yet. brief: no stream of it holds a state for long.
    """

    unread: int
    streams: dict[Stream, None] = field(default_factory=dict)
    unopened: bool = True
    brief: bool = False


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
        self._large: dict[Hashable, deque[Job]] = {}  # unopened jobs, by tenant
        self._unopened = 0  # streams of those
        self._queue = FairQueue(limits, whole)
        self._admitted = Admitted()
        self._arriving: list[Stream] = []  # of those, whose states are on their way
        self._decoding = Decoders()
        self._decode_time = StepTime(limits.max_batch_tokens, _DECODES)
        self._read_time = StepTime(limits.max_batch_tokens, _READS)
        self._crowded = False  # not all streams that decode are in the last batch
        # In their grammars; with the number of texts that have begun.
        self._beginning: dict[Job, tuple[list[TextPosition], int]] = {}
        self._late: list[Stream] = []  # have read their inputs, but for a token
        self._unready: list[Stream] = []  # would be in the last batch, but for their grammars
        self._idle = False  # the last batch was empty

    @property
    def running(self) -> int:
        """Sequences without a last result."""
        return self.admitted + self._queue.new + self._unopened

    @property
    def admitted(self) -> int:
        """Those of them that may hold a state."""
        return len(self._admitted)

    @property
    def busy(self) -> bool:
        """Whether there is any job."""
        return bool(self._jobs) or not self._inbox.empty

    @property
    def contended(self) -> bool:
        """Whether somebody could be in a step besides the streams of the last batch that decode."""
        waits = bool(self._queue) or bool(self._large) or self._crowded
        return waits or not self._inbox.empty or self._some_grammar_is_ready()

    def _some_grammar_is_ready(self) -> bool:
        """Whether a stream that waited for its grammar could go on."""
        texts = [positions[begun] for positions, begun in self._beginning.values()]
        texts += [s.spelling for s in (*self._late, *self._unready) if s.spelling is not None]
        try:
            return any(text.ready() for text in texts)
        except faults():  # who goes on with it meets it again
            return True

    def next_batch(self) -> Batch:
        """What to compute next; waits while there is nothing. Empty after `wake`."""
        if self._jobs or self._states.busy:
            glance = _GLANCE_SECONDS if self._states.busy else _LOOK_SECONDS
            self._receive(glance if self._idle else 0)
        else:
            self._receive(None)
        self._end_early()
        if self._large:
            self._open_large()
        if self._beginning:
            self._open_begun()
        self._states.make_room(self.running)
        most, reads = self._limits.max_batch_tokens, self._read_time.rows
        few = max(1, min(most // _DECODE_SHARE, reads // 2))
        self._begin(_AHEAD * (few if self._decoding else most))
        self._land()
        part = self._equal_part()
        if part:
            few = max(1, min(part // _DECODE_SHARE, few))
        decodes: list[Stream] = []
        if self._decoding:
            room = min((part or most) - min(few, self._queue.tokens), self._decode_time.rows)
            decodes = self._decoding.choose(max(1, room))
        self._crowded = len(decodes) < len(self._decoding)
        chosen, decodes = decodes, [stream for stream in decodes if stream.ready]
        self._unready = [] if len(decodes) == len(chosen) else list(set(chosen) - set(decodes))
        if decodes:
            budget = min(part - len(decodes), reads // 2) if part else min(most - len(decodes), few)
        elif self._whole:
            budget = most
        else:
            budget = min(part or most, reads)
        batch = Batch(decodes, self._share(max(1, budget)) if self._queue else [])
        self._idle = not len(batch)
        return batch

    def took(self, batch: Batch, tokens: int, seconds: float) -> None:
        """A batch has taken so long, settling included, for all of its tokens."""
        rows = len(batch.decodes) + sum(count for _, count in batch.inputs)
        (self._decode_time if batch.decodes else self._read_time).learn(rows, tokens, seconds)

    def settle(self, batch: Batch) -> None:
        """Queue the streams that have inputs left again; the others leave the queue."""
        for stream, _ in batch.inputs:
            if not stream.remaining:
                self._admitted.remove(stream)
                self._leave(stream.job)
            elif stream.late:
                self._late.append(stream)
            elif not stream.dropped:
                self._queue.put_back(stream)

    def decode(self, stream: Stream) -> None:
        """From now on the stream takes a token in every step."""
        if not stream.admitted:  # it has read its inputs
            stream.let_go()
            self._decoding.add(stream)
            self._admitted.add(stream)

    def retire(self, stream: Stream) -> None:
        """The stream takes part in no more steps."""
        if stream in self._decoding:
            self._decoding.remove(stream)
            self._admitted.remove(stream)

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
            if stream in self._decoding:
                self._decoding.remove(stream)
        self._admitted.drop(job)
        self._queue.drop(job)
        self._beginning.pop(job, None)
        if entry.unopened:
            self._unopened -= len(job.items)
        if entry.unread:
            self._inbox.leave(job)
        return list(entry.streams)

    def jobs(self) -> list[Job]:
        """Every job that is here."""
        self._receive(0)
        return list(self._jobs)

    def _receive(self, patience: float | None) -> None:
        for note in self._inbox.receive(patience):
            if not isinstance(note, Job):
                self._states.residents.drop(note)
                continue
            self._jobs[note] = _Open(unread=len(note.items))
            self._unopened += len(note.items)
            if len(note.items) > _MANY_ITEMS:
                self._large.setdefault(note.tenant, deque()).append(note)
            else:
                self._open(note)

    def _open_large(self) -> None:
        """Open one large job, of the tenants in turn; small ones never wait for it."""
        while self._large:
            tenant, jobs = next(iter(self._large.items()))
            del self._large[tenant]
            job = jobs.popleft()
            if jobs:
                self._large[tenant] = jobs
            if job in self._jobs:  # else it has ended
                self._open(job)
                return

    def _open(self, job: Job) -> None:
        if job.sampling.constraint is None:
            self._make_streams(job, ())
            return
        try:
            self._beginning[job] = positions_of(job), 0
        except ServeError as error:
            self._fail(job, error)
        else:
            self._open_if_begun(job)

    def _open_begun(self) -> None:
        for job in list(self._beginning):
            self._open_if_begun(job)

    def _open_if_begun(self, job: Job) -> None:
        """Open a job when all of its texts have their places in its constraint."""
        positions, begun = self._beginning[job]
        try:
            while begun < len(positions) and positions[begun].ready():
                begun += 1
        except faults() as error:
            self._fail(job, _as_failure(error))
            return
        if begun < len(positions):
            self._beginning[job] = positions, begun
            return
        del self._beginning[job]
        self._make_streams(job, positions)

    def _make_streams(self, job: Job, positions: Sequence[TextPosition]) -> None:
        entry = self._jobs[job]
        entry.unopened = False
        self._unopened -= len(job.items)
        try:
            streams = streams_of(job, self._codec, positions)
            self._states.receive(streams)
        except faults() as error:  # nobody else is to suffer
            self._fail(job, _as_failure(error))
        else:
            entry.streams = dict.fromkeys(streams)
            self._queue.add(job, streams)
            entry.brief = job.steps + job.tokens <= self._limits.small

    def _begin(self, budget: int) -> None:
        """Let streams hold a state whose turn comes with the next `budget` tokens."""
        if not self._queue.new:
            return
        room = self._states.room
        begun = self._queue.begin(budget, lambda stream: self._enter(stream, room))
        if not begun and room <= 0 and not self._admitted and not self._states.busy:
            self._refuse_first()  # nothing will change
        self._states.admit(begun, self._fail)
        for stream in begun:
            if stream.arrival is not None:
                self._arriving.append(stream)
            elif not stream.dropped:
                self._queue.land(stream)

    def _enter(self, stream: Stream, room: int) -> bool:
        """Count a stream as one that may hold a state, if it may."""
        job = stream.job
        if not self._admitted.allows(job, self._jobs[job].brief, room):
            return False
        self._admitted.add(stream)
        return True

    def _refuse_first(self) -> None:
        job = self._queue.first
        assert job is not None
        self._fail(
            job,
            Overloaded(
                "kept streams fill SRUSERVE_STATE_POOL_BYTES, and "
                "SRUSERVE_STATE_HOST_BYTES has no room for them: drop some"
            ),
        )

    def _land(self) -> None:
        """See which states have arrived, and end the jobs of those that never will."""
        late, self._late = self._late, []
        for stream in late:
            if not stream.dropped:
                if stream.ready:
                    self._queue.put_back(stream)
                else:
                    self._late.append(stream)
        arriving, self._arriving = self._arriving, []
        for stream in arriving:
            try:
                if stream.dropped:
                    continue
                if self._states.arrived(stream):
                    self._queue.land(stream)
                else:
                    self._arriving.append(stream)
            except ServeError as error:
                self._fail(stream.job, error)
        if self._arriving:  # a job that failed here has dropped its other streams, too
            self._arriving = [stream for stream in self._arriving if not stream.dropped]

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

    def _equal_part(self) -> int:
        """Rows of a step that slows no tenant below an equal part of the device; 0: there is one.

        With n tenants, the step takes n times as long as one for the tenant with the fewest rows.
        """
        rows = self._queue.wanted(self._limits.max_batch_tokens)
        for tenant, count in self._decoding.counts.items():
            rows[tenant] = rows.get(tenant, 0) + count
        if len(rows) < 2:
            return 0
        time = self._decode_time if self._decoding else self._read_time
        return time.shared(len(rows), min(rows.values()))

    def _share(self, budget: int) -> list[tuple[Stream, int]]:
        """Take streams out of the queue for a step, with their parts of `budget` tokens.

        Where nothing else can run, those are taken, too, whose states are still arriving: the
        device waits for them then.
        """
        if not self._queue.tokens and not self._decoding:
            self._land_early(budget)
        return self._queue.take(budget)

    def _land_early(self, budget: int) -> None:
        """Land streams whose states have been launched, so few that one step takes all of them."""
        launched = 0
        for stream in self._arriving:
            budget -= cost_of(stream)
            if stream.arrival is None or not stream.arrival.launched or (launched and budget < 0):
                break
            self._queue.land(stream)
            launched += 1
        del self._arriving[:launched]

    def _leave(self, job: Job) -> None:
        """One stream of a job has consumed its inputs; after the last, the job leaves the queue."""
        entry = self._jobs[job]
        entry.unread -= 1
        if not entry.unread:
            self._inbox.leave(job)
            self._queue.drop(job)
            job.let_go()


def _as_failure(error: BaseException) -> ServeError:
    """What a job is told that could not be opened."""
    if isinstance(error, ServeError):
        return error
    if is_out_of_memory(error):
        return OutOfDeviceMemory()
    return EngineFailure(f"the request could not be prepared: {error}")
