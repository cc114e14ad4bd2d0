"""Decide what the next step computes. The scheduler never touches a tensor."""

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sruserve.kernels.oom import is_out_of_memory
from sruserve.model.heads.crf import LinearChain
from sruserve.model.text.codec import Codec
from sruserve.server.engine.admission_queue import AdmissionQueue
from sruserve.server.engine.batch import Batch
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.constrained.protocols import TextPosition
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_sequences import positions_of, sequences_of
from sruserve.server.engine.scheduling.company import Company
from sruserve.server.engine.scheduling.decode_turns import DecodeTurns
from sruserve.server.engine.scheduling.fair_queue import NO_LIMITS, FairQueue
from sruserve.server.engine.scheduling.fair_shares import cost_of, split
from sruserve.server.engine.scheduling.state_admission import StateAdmission
from sruserve.server.engine.scheduling.step_time import StepTime
from sruserve.server.engine.sequence import ActiveSequence
from sruserve.server.engine.state_cache.cache import CachedState
from sruserve.server.engine.state_manager import StateManager
from sruserve.server.errors import (
    DeadlineExceeded,
    EngineFailure,
    OutOfDeviceMemory,
    Overloaded,
    ServeError,
    faults,
)

_POLL_SECONDS = 20e-6  # between two polls, while all work waits for state transfers
_GRAMMAR_POLL_SECONDS = 500e-6  # between two polls, while texts wait for their grammars
_DECODE_SHARE = 8  # while sequences decode, inputs take at most 1/8 of a step, so no decode stalls
_MIN_DECODE_ROWS, MIN_INPUT_ROWS = 64, 128  # rows that every step may have, on any device
_SCORES_PER_INPUT = 512  # to sample by so many scores takes about as long as to read an input
_STEPS_AHEAD = 2  # admit the sequences of 2 steps; states for the second arrive during the first
_MAX_STEPS = 1 << 20  # no burst has as many
_LARGE_JOB_ITEMS = 16  # a job with more takes long to set up: at most one of them in each step


@dataclass(slots=True)
class _JobEntry:
    """A job in the scheduler.

    unconsumed: number of sequences with inputs left. sequences: those without a last result.
    unqueued: the sequences are not created yet. short: no sequence holds a state for long.
    """

    unconsumed: int
    sequences: dict[ActiveSequence, None] = field(default_factory=dict)
    unqueued: bool = True
    short: bool = False


@dataclass(frozen=True, slots=True)
class FairRows:
    """A step in which several tenants have equal shares.

    rows: of the step. inputs: those for inputs. limits: the same for each tenant: what its decoding
    sequences leave of its share, but at least 1/8 of the share.
    """

    rows: int
    inputs: int
    limits: Mapping[Hashable, int]


class Scheduler:
    """Holds the waiting and the running sequences.

    states: limits the sequences that may hold a state, and loads the states that they start from.
    whole: inputs cannot be split. outputs: scores by which a token is sampled.
    fail: called with a job that ends early and its error (None: the client disconnected); it must
        `drop` the job.
    clock: of the times of jobs.
    """

    def __init__(
        self,
        config: EngineConfig,
        admission_queue: AdmissionQueue,
        states: StateManager,
        whole: bool,
        codec: Codec | None,
        crf: LinearChain | None,
        outputs: int,
        on_gpu: bool,
        fail: Callable[[Job, ServeError | None], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._config, self._admission_queue, self._states = config, admission_queue, states
        self._transfers = states.transfers
        self._whole, self._codec, self._crf, self._fail = whole, codec, crf, fail
        self._jobs: dict[Job, _JobEntry] = {}
        self._large: dict[Hashable, deque[Job]] = {}  # large jobs without sequences, by tenant
        self._unqueued = 0  # items of all jobs whose sequences are not created yet
        self._queue = FairQueue(config, whole, outputs // _SCORES_PER_INPUT)
        self._admitted = StateAdmission()
        self._arriving: list[ActiveSequence] = []  # admitted, with a state transfer under way
        self._decoding = DecodeTurns()
        # A GPU samples with a kernel, and times few of its bursts while prompts arrive.
        first_rows = None if on_gpu else _MIN_DECODE_ROWS
        self._decode_time = StepTime(
            config.max_batch_tokens, _MIN_DECODE_ROWS, first_rows=first_rows
        )
        self._input_time = StepTime(config.max_batch_tokens, MIN_INPUT_ROWS)
        self._company = Company()
        self._crowded = False  # the last batch left out some decoding sequences
        # Jobs that wait for their grammars, with the number of their texts that have begun.
        self._beginning: dict[Job, tuple[list[TextPosition], int]] = {}
        # Inputs computed, first token not accepted yet.
        self._late: dict[ActiveSequence, None] = {}
        # Left out of the last batch by their grammars.
        self._unready: dict[ActiveSequence, None] = {}
        self._idle = False  # the last batch was empty

    @property
    def running(self) -> int:
        """Sequences without a last result."""
        return self.admitted + self._queue.new + self._unqueued

    @property
    def admitted(self) -> int:
        """Running sequences that may hold a state."""
        return len(self._admitted)

    @property
    def busy(self) -> bool:
        """Whether there is any job."""
        return bool(self._jobs) or not self._admission_queue.empty

    @property
    def idle(self) -> bool:
        """Whether there is no job and no transfer of a state."""
        return not (self._jobs or self._transfers.busy)

    @property
    def max_input_rows(self) -> int:
        """Rows that a step may have if nothing decodes."""
        return min(self._config.max_batch_tokens, self._input_time.rows)

    def input_seconds(self, rows: int) -> float:
        """The time of a step of so many rows of inputs, as far as steps were measured."""
        return self._input_time.seconds(rows)

    @property
    def has_waiting(self) -> bool:
        """Whether any work waits, other than decoding sequences."""
        if self._queue or self._large or not self._admission_queue.empty:
            return True
        by_grammar = self._beginning or self._late or self._unready
        return bool(by_grammar) and self._some_grammar_is_ready()

    @property
    def crowded(self) -> bool:
        """Whether the last batch left out some decoding sequences."""
        return self._crowded

    def _some_grammar_is_ready(self) -> bool:
        """Whether a sequence that waited for its grammar could go on."""
        now = time.monotonic()
        return any(
            positions[begun].ready(now) for positions, begun in self._beginning.values()
        ) or any(sequence.ready(now) for sequence in (*self._late, *self._unready))

    def next_batch(self) -> Batch:
        """Choose the next batch; it is empty while all work waits for transfers or grammars."""
        poll = _POLL_SECONDS if self._transfers.busy else _GRAMMAR_POLL_SECONDS
        self._receive(poll if self._idle else 0)
        self._finish_early()
        if self._large:
            self._enqueue_large()
        # one for all texts, which then take one poll of each grammar's process
        poll_time = time.monotonic()
        for job in list(self._beginning):
            self._enqueue_if_begun(job, poll_time)
        self._states.make_room(self.running)
        max_tokens = self._config.max_batch_tokens
        short = self._company.expects(
            self._queue.tenants | self._decoding.counts.keys(), self._clock()
        )
        input_rows = self._input_time.short_rows if short else self._input_time.rows
        input_share = max(1, min(max_tokens // _DECODE_SHARE, input_rows // 2))
        self._begin(_STEPS_AHEAD * (input_share if self._decoding else max_tokens))
        self._poll_arrivals(poll_time)
        fair = self._fair_rows()
        fair_rows, limits = (fair.rows, fair.limits) if fair else (0, NO_LIMITS)
        if fair:
            input_share = min(fair.inputs, input_share)
        decodes: list[ActiveSequence] = []
        if self._decoding:
            decode_rows = min(
                (fair_rows or max_tokens) - min(input_share, self._queue.tokens),
                self._decode_time.short_rows if short else self._decode_time.rows,
            )
            decodes = self._decoding.choose(max(1, decode_rows))
        self._crowded = len(decodes) < len(self._decoding)
        late = [each for each in decodes if each.constraint_state and not each.ready(poll_time)]
        self._unready = dict.fromkeys(late)
        if late:
            decodes = [sequence for sequence in decodes if sequence not in self._unready]
        if decodes:
            budget = (
                min(fair_rows - len(decodes), input_rows // 2)
                if fair_rows
                else min(max_tokens - len(decodes), input_share)
            )
        elif self._whole:
            budget = input_rows
        else:
            budget = min(fair_rows or max_tokens, input_rows)
        batch = Batch(decodes, self._share(max(1, budget), limits) if self._queue else [])
        self._idle = not len(batch)
        return batch

    def record_step(self, inputs: int, decodes: int, tokens: int, seconds: float) -> None:
        """Record the time that a step took for all of its tokens, including settling.

        inputs, decodes: its rows.
        """
        time = self._decode_time if decodes else self._input_time
        time.learn(inputs + decodes, tokens, seconds)

    def decode_steps(self, sequences: int, seconds: float) -> int:
        """The number of steps in which so many sequences decode within `seconds`; at least 1."""
        steps = self._decode_time.steps_within(seconds, sequences)
        return max(1, int(min(steps, _MAX_STEPS)))

    def settle(self, batch: Batch) -> None:
        """Queue the sequences that have inputs left again; the others leave the queue."""
        for sequence, _ in batch.inputs:
            if not sequence.remaining:
                self._admitted.remove(sequence)
                self._input_consumed(sequence.job)
            elif sequence.dropped:
                continue
            elif sequence.needs_constraint:
                self._late[sequence] = None
            else:
                self._queue.put_back(sequence)

    def decode(self, sequence: ActiveSequence) -> None:
        """Let a sequence take a token in every step from now on."""
        if not sequence.admitted:  # its inputs have just been consumed
            sequence.forget_inputs()
            self._decoding.add(sequence)
            self._admitted.add(sequence)

    def retire(self, sequence: ActiveSequence) -> None:
        """Exclude a sequence from all further steps."""
        if sequence in self._decoding:
            self._decoding.remove(sequence)
            self._admitted.remove(sequence)

    def decoding(self, job: Job) -> list[ActiveSequence]:
        """A job's decoding sequences; empty while any of its sequences has inputs left."""
        entry = self._jobs[job]
        return [] if entry.unconsumed else [s for s in entry.sequences if s in self._decoding]

    def finish(self, sequence: ActiveSequence) -> bool:
        """Remove a sequence that has its last result; return whether it was its job's last one."""
        sequences = self._jobs[sequence.job].sequences
        del sequences[sequence]
        if not sequences:
            del self._jobs[sequence.job]
        return not sequences

    def drop(self, job: Job) -> list[ActiveSequence]:
        """Remove a job and return its sequences without a last result."""
        entry = self._jobs.pop(job, None)
        if entry is None:
            return []
        for sequence in entry.sequences:
            sequence.dropped = True
            self._late.pop(sequence, None)
            self._unready.pop(sequence, None)
            if sequence in self._decoding:
                self._decoding.remove(sequence)
        self._admitted.drop(job)
        self._queue.drop(job)
        self._beginning.pop(job, None)
        if entry.unqueued:
            self._unqueued -= len(job.items)
        if entry.unconsumed:
            self._admission_queue.mark_consumed(job)
        return list(entry.sequences)

    def jobs(self) -> list[Job]:
        """All jobs, including those that were submitted but not received yet."""
        self._receive(0)
        return list(self._jobs)

    def _receive(self, timeout: float | None) -> None:
        self.accept(self._admission_queue.receive(timeout))

    def accept(self, messages: Iterable[Job | CachedState]) -> None:
        """Enqueue the jobs that were received, and free the cached states."""
        for message in messages:
            if not isinstance(message, Job):
                self._states.cache.free(message)
                continue
            self._jobs[message] = _JobEntry(unconsumed=len(message.items))
            self._unqueued += len(message.items)
            self._company.note(message.tenant, message.submitted)
            if len(message.items) > _LARGE_JOB_ITEMS:
                self._large.setdefault(message.tenant, deque()).append(message)
            else:
                self._enqueue(message)

    def _enqueue_large(self) -> None:
        """Enqueue one large job, of each tenant in turn; small jobs never wait for it."""
        while self._large:
            tenant, jobs = next(iter(self._large.items()))
            del self._large[tenant]
            job = jobs.popleft()
            if jobs:
                self._large[tenant] = jobs
            if job in self._jobs:  # else it has ended
                self._enqueue(job)
                return

    def _enqueue(self, job: Job) -> None:
        if job.sampling.constraint is None:
            self._make_sequences(job, ())
            return
        try:
            self._beginning[job] = positions_of(job), 0
        except ServeError as error:
            self._fail(job, error)

    def _enqueue_if_begun(self, job: Job, now: float) -> None:
        """Enqueue a job once its constraint has located all of its texts."""
        positions, begun = self._beginning[job]
        while begun < len(positions) and positions[begun].ready(now):
            problem = positions[begun].problem
            if problem is not None:
                self._fail(job, problem)
                return
            begun += 1
        if begun < len(positions):
            self._beginning[job] = positions, begun
            return
        del self._beginning[job]
        self._make_sequences(job, positions)

    def _make_sequences(self, job: Job, positions: Sequence[TextPosition]) -> None:
        entry = self._jobs[job]
        entry.unqueued = False
        self._unqueued -= len(job.items)
        try:
            sequences = sequences_of(job, self._codec, positions, self._crf)
            self._states.retain_inputs(sequences)
        except faults() as error:  # fails this job alone
            self._fail(job, _as_serve_error(error))
        else:
            entry.sequences = dict.fromkeys(sequences)
            self._queue.add(job, sequences)
            entry.short = job.steps + job.tokens <= self._config.small

    def _begin(self, budget: int) -> None:
        """Admit the sequences whose turn is within the next `budget` tokens."""
        if not self._queue.new:
            return
        max_admitted = self._states.max_admitted
        begun = self._queue.begin(budget, lambda sequence: self._try_admit(sequence, max_admitted))
        if not begun and max_admitted <= 0 and not self._admitted and not self._transfers.busy:
            self._refuse_first()  # no sequence or transfer will free a row
        self._states.admit(begun, self._fail)
        for sequence in begun:
            if sequence.upload is not None:
                self._arriving.append(sequence)
            elif not sequence.dropped:
                self._queue.land(sequence)

    def _try_admit(self, sequence: ActiveSequence, max_admitted: int) -> bool:
        """Count a sequence as holding a state, if it may hold one."""
        job = sequence.job
        if not self._admitted.allows(job, self._jobs[job].short, max_admitted):
            return False
        self._admitted.add(sequence)
        return True

    def _refuse_first(self) -> None:
        job = self._queue.first
        assert job is not None
        self._fail(
            job,
            Overloaded(
                "held streams fill SRUSERVE_STATE_POOL_BYTES and SRUSERVE_STATE_HOST_BYTES: "
                "drop streams, or ask the operator to raise one of these"
            ),
        )

    def _poll_arrivals(self, now: float) -> None:
        """Queue sequences whose state or constraint is ready; fail jobs whose transfer failed."""
        for sequence in [sequence for sequence in self._late if sequence.ready(now)]:
            del self._late[sequence]
            self._queue.put_back(sequence)
        arriving, self._arriving = self._arriving, []
        for sequence in arriving:
            try:
                if sequence.dropped:
                    continue
                if self._states.is_ready(sequence):
                    self._queue.land(sequence)
                else:
                    self._arriving.append(sequence)
            except ServeError as error:
                self._fail(sequence.job, error)
        if self._arriving:  # a job that failed here has dropped its other sequences, too
            self._arriving = [sequence for sequence in self._arriving if not sequence.dropped]

    def _finish_early(self) -> None:
        """End jobs whose client disconnected, or whose deadline passed before their first step."""
        now = self._clock()
        ended = [
            job
            for job in self._jobs
            if job.done.done() or (job.deadline and not job.begun and now > job.deadline)
        ]
        for job in ended:
            self._fail(job, None if job.withdrawn else DeadlineExceeded())

    def _fair_rows(self) -> FairRows | None:
        """Rows of a step that leaves every tenant an equal share of the device.

        With n tenants, that step takes n times as long as a step for the tenant with the fewest
        rows. None: there are fewer than two tenants, so no limit.
        """
        inputs = self._queue.ready_tokens(self._config.max_batch_tokens)
        decodes = self._decoding.counts
        rows = {tenant: inputs.get(tenant, 0) + count for tenant, count in decodes.items()}
        rows = inputs | rows
        if len(rows) < 2:
            return None
        time = self._decode_time if decodes else self._input_time
        fair_rows = time.shared(len(rows), min(rows.values()))
        shares = dict(zip(rows, split(list(rows.values()), fair_rows), strict=True))
        limits = {
            tenant: max(1, share // _DECODE_SHARE, share - decodes.get(tenant, 0))
            for tenant, share in shares.items()
            if tenant in inputs
        }
        return FairRows(fair_rows, sum(limits.values()), limits)

    def _share(
        self, budget: int, limits: Mapping[Hashable, int]
    ) -> list[tuple[ActiveSequence, int]]:
        """Take sequences out of the queue for a step, with their shares of `budget` tokens.

        If there is no other work, this includes sequences whose transfers are under way; the
        device then waits for their states.

        limits: the most inputs of each tenant; empty: there are none.
        """
        if not self._queue.tokens and not self._decoding:
            self._land_launched(budget)
        return self._queue.take(budget, limits)

    def _land_launched(self, budget: int) -> None:
        """Queue sequences whose transfers were launched, few enough for one step."""
        launched = 0
        for sequence in self._arriving:
            budget -= cost_of(sequence)
            if sequence.upload is None or not sequence.upload.launched or (launched and budget < 0):
                break
            self._queue.land(sequence)
            launched += 1
        del self._arriving[:launched]

    def _input_consumed(self, job: Job) -> None:
        """Count a sequence as consumed; after its last sequence, the job leaves the queue."""
        entry = self._jobs[job]
        entry.unconsumed -= 1
        if not entry.unconsumed:
            self._admission_queue.mark_consumed(job)
            self._queue.drop(job)
            job.forget_inputs()


def _as_serve_error(error: BaseException) -> ServeError:
    """The client's error for a job whose sequences could not be created."""
    if isinstance(error, ServeError):
        return error
    if is_out_of_memory(error):
        return OutOfDeviceMemory()
    return EngineFailure(f"the request could not be prepared: {error}; change it, or report a bug")
