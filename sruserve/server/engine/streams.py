"""A stream: one sequence of a job while the engine works on it."""

import math
from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from sruserve.kernels.slots import WINDOW
from sruserve.model.text import Codec
from sruserve.server.engine.constrained import MOST_SPELLED, TextPosition
from sruserve.server.engine.found import Found
from sruserve.server.engine.jobs import (
    COMPLETE,
    LENGTH,
    Classified,
    Encoded,
    Ending,
    Generated,
    Job,
    Keep,
    Kind,
    Logprobs,
    Result,
    Row,
    Scored,
    Snapshot,
    Tagged,
)
from sruserve.server.engine.moves import Move
from sruserve.server.engine.philox import uniforms
from sruserve.server.engine.residents import Resident
from sruserve.server.engine.writer import Writer
from sruserve.server.errors import NotFinite

_NEW = Snapshot(np.zeros(0, np.float32))
_NONE = np.zeros(0, np.int64)
_DRAWS = 128  # random numbers made ahead: one call costs as much as the first hundred


Ids = NDArray[np.int64]


def positions_of(job: Job) -> list[TextPosition]:
    """A place for every text of a job in its constraint, if it has one.

    It is where the text's state left it, but behind a prompt it begins. Texts that begin equally
    are read once.
    """
    constraint = job.sampling.constraint
    if constraint is None:
        return []
    positions: list[TextPosition] = []
    begun: dict[bytes, TextPosition] = {}
    for item in job.items:
        start = item.start or _NEW
        goes_on = start.constraint == constraint.identity and not len(item.inputs)
        spelled = start.spelled if goes_on else b""
        if spelled in begun:
            positions.append(begun[spelled].copy())
        else:
            positions.append(constraint.begin(spelled))
            begun[spelled] = positions[-1]
    return positions


def streams_of(
    job: Job, codec: Codec | None, positions: Sequence[TextPosition] = ()
) -> list["Stream"]:
    """A stream for every item of a job. Choices of one prompt share its tokens."""
    if not job.kind.predicts:
        return [Stream(job, index, codec, _NONE) for index in range(len(job.items))]
    known: dict[tuple[int, int], Ids] = {}
    streams = []
    for index, item in enumerate(job.items):
        pending = item.start.pending if item.start else -1
        key = (id(item.inputs), pending)
        if key not in known:
            tokens: Ids = item.inputs.astype(np.int64, copy=False)
            known[key] = np.concatenate(([pending], tokens)) if pending >= 0 else tokens
        position = positions[index] if positions else None
        streams.append(Stream(job, index, codec, known[key], position))
    return streams


class Stream:
    """What is known of one sequence between two steps.

    row: the pool row of its state after `steps` tokens; -1: what it starts from, or zeros.
    start: the state that it starts from. arrival: how that comes into `row`, if it has to.
    known: the tokens it begins with, where its job predicts: the pending one of the state it
        continues, then the item's.
    inputs: what it has to consume; `done` of it is consumed.
    pending: its last token, known but not consumed; -1 is none.
    found: what steps read out of the network for it.
    samples: tokens are sampled behind its inputs. spelling: their place in the constraint.
    checkpoint: a state of it, or its last one, is on its way to be told.
    """

    def __init__(
        self,
        job: Job,
        index: int,
        codec: Codec | None,
        known: Ids,
        spelling: TextPosition | None = None,
    ) -> None:
        item = job.items[index]
        start = item.start or _NEW
        self.job, self.index, self.codec = job, index, codec
        self.row = -1
        self.start: Row | Resident | None = start.row if item.start else None
        self.arrival: Move | None = None
        # What `States` takes back in the end: a use of `start`, a hold on its row, a promise.
        self.uses = self.reads = self.promised = False
        self.steps, self.done = start.steps, 0
        self.pending = -1
        self.known = known
        self.window: list[int] = []
        self.inputs: NDArray[np.int64] | NDArray[np.float32] = item.inputs
        self.generated = 0
        self.spelling = spelling
        self.samples = job.kind is Kind.GENERATE and self.ending is None
        if job.kind.predicts:
            # The last token is consumed only where something is to be sampled after it.
            self.inputs = self.known if self.samples else self.known[:-1]
            if not self.samples and len(self.known):
                self.pending = int(self.known[-1])
            self.window = [*start.window, *item.inputs[-WINDOW:].tolist()][-WINDOW:]
        self.found = Found(start.answer if len(start.answer) else None)
        self.admitted = False  # it may hold a state
        self.dropped = False  # its job ended early
        self.checkpoint = False
        self._unmarked = 0  # characters, or tokens, since the last checkpoint
        self._writer = None
        if job.kind is Kind.GENERATE and codec is not None:
            self._writer = Writer(codec.pieces, job.sampling.stop, start.utf8, start.held)
        self._text: list[str] = []
        if self._writer and len(item.inputs):  # nothing held back can go on behind a new prompt
            self._text.append(self._writer.flush())
        self._draws: NDArray[np.float64] = np.zeros(0)
        self._draws_from = 0
        self._tokens: list[int] = []
        self._logprobs: list[Logprobs] = []
        self.told_at = 0.0

    @property
    def resident(self) -> Resident | None:
        """The kept state that it starts from, if it does."""
        return self.start if isinstance(self.start, Resident) else None

    @property
    def source(self) -> int:
        """The pool row that its next step reads; -1 is none: zeros."""
        if self.row >= 0 or self.resident is None:
            return self.row
        return self.resident.row

    @property
    def remaining(self) -> int:
        """Inputs that are not consumed yet."""
        return len(self.inputs) - self.done

    @property
    def parts(self) -> tuple[int, ...]:
        """The lengths of the sequences that it consists of: one, or the two of a pair."""
        first = self.job.items[self.index].first
        return (len(self.inputs),) if first is None else (first, len(self.inputs) - first)

    def let_go(self) -> None:
        """Forget what it began with, which is consumed: it goes on from its row."""
        self.inputs = self.known = _NONE
        self.done = 0
        if self.resident is None:
            self.start = None

    @property
    def late(self) -> bool:
        """Whether its constraint has not been told of the token that was picked last."""
        return self.spelling is not None and self.spelling.late

    @property
    def spelled_ahead(self) -> int:
        """Tokens that its constraint has taken in this step."""
        return 0 if self.spelling is None else self.spelling.ahead

    @property
    def ready(self) -> bool:
        """Whether a step can pick its next token."""
        return self.spelling is None or self.spelling.ready()

    @property
    def tokens_left(self) -> int:
        """Tokens that may be sampled yet."""
        left = self.job.sampling.max_tokens - self.generated
        if self.spelling is not None:
            left = min(left, MOST_SPELLED - self.spelling.length)
        return left

    @property
    def ending(self) -> Ending | None:
        """Why nothing is sampled any more, if nothing is; a stop string is told by `write`."""
        if self.spelling is not None and self.spelling.ended:
            return COMPLETE
        return None if self.tokens_left > 0 else LENGTH

    @property
    def unbroken(self) -> int:
        """Most tokens of the next burst: until the text may end, or a checkpoint is due."""
        if not self.marks:
            return self.tokens_left
        due = self.job.sampling.state_interval - self._unmarked
        return min(self.tokens_left, max(1, due))

    @property
    def marks(self) -> bool:
        """Whether its state is told on the way."""
        job = self.job
        return bool(job.sampling.state_interval) and job.stream and job.keep is Keep.SNAPSHOT

    @property
    def checkpoint_due(self) -> bool:
        return self.marks and self._unmarked >= self.job.sampling.state_interval

    def draws(self, position: int, count: int) -> NDArray[np.float64]:
        """Random numbers for the `count` tokens from stream position `position` on."""
        first = position - self._draws_from
        if first < 0 or first + count > len(self._draws):
            item = self.job.items[self.index]
            self._draws = uniforms(item.seed, item.choice, position, max(count, _DRAWS))
            self._draws_from, first = position, 0
        return self._draws[first : first + count]

    def write(
        self, tokens: Sequence[int], logprobs: Sequence[Logprobs]
    ) -> tuple[int, Ending | None, int]:
        """Take sampled tokens up to where the text ends: (tokens used, why it ends, characters).

        Raises what has kept the constraint from being followed.
        """
        if self.spelling is not None:
            if self.spelling.problem is not None:
                # a copy, since its traceback leads to this stream, and so to itself
                raise copy(self.spelling.problem)
            tokens = tokens[: self.spelling.ahead]
        used, stop, text = len(tokens), None, ""
        if self._writer is not None:
            ignore = self.job.sampling.min_tokens - self.generated
            text, used, stop = self._writer.write(tokens, ignore)
            self._text.append(text)
        tokens = tokens[:used]
        self._tokens.extend(tokens)
        self._logprobs.extend(logprobs[:used])
        self.window = [*self.window, *tokens][-WINDOW:]
        self.generated += used
        self._unmarked += used if self._writer is None else len(text)
        if self.spelling is not None:
            self.spelling.settle(used)
        return used, self.ending if stop is None else Ending("stop", stop), len(text)

    def tell(self, now: float) -> Generated:
        """What was generated since the last time."""
        self.told_at = now
        told = Generated("".join(self._text), self._tokens, self._logprobs)
        self._text, self._tokens, self._logprobs = [], [], []
        return told

    def mark(self, now: float) -> tuple[Generated, Snapshot]:
        """What was generated since the last time, and all of the state behind it but its row."""
        self._unmarked = 0
        return self.tell(now), self._snapshot(_NEW.row)

    def finish(self, row: Row | Resident | None, ending: Ending) -> Result:
        """The last result, with the state that it ends in if `row` holds it."""
        job = self.job
        goes_on = job.keep is not Keep.NOTHING and ending is not COMPLETE
        if self._writer is not None and not goes_on and ending.stop_reason is None:
            self._text.append(self._writer.flush())
        state = None if row is None else self._snapshot(row)
        if job.kind is not Kind.GENERATE:
            return self._reading(state)
        last = self.tell(0.0)
        return Generated(
            last.text,
            last.tokens,
            last.logprobs,
            finish_reason=ending.finish_reason,
            stop_reason=ending.stop_reason,
            state=state,
        )

    def _reading(self, state: Snapshot | None) -> Result:
        """What its steps found, all together."""
        item, found, steps = self.job.items[self.index], self.found, len(self.inputs)
        match self.job.kind:
            case Kind.TAG:
                start = item.start or _NEW
                before = int(start.answer.argmax()) if len(start.answer) else None
                labels = np.concatenate([_NONE, *found.labels])
                scores = np.concatenate([_NEW.answer, *found.values])
                if np.isnan(scores).any():
                    raise not_finite()
                return Tagged(labels, scores, before, steps, state)
            case Kind.ENCODE:
                outputs = np.concatenate(found.values) if steps else np.zeros((0, 0), np.float32)
                return Encoded(outputs, steps, state)
            case Kind.SCORE:
                # fsum rounds once, so the sum does not depend on how the engine cut the input.
                total = math.fsum(value for part in found.values for value in part.tolist())
                if not math.isfinite(total):
                    raise not_finite()
                targets = self.known[1:]
                characters = 0 if self.codec is None else int(self.codec.characters[targets].sum())
                return Scored(total, len(targets), characters, steps, state, found.logprobs)
        if found.answer is not None and math.isnan(found.answer.item(-1)):  # then all of them are
            raise not_finite()
        unanswered = item.more and not steps
        return Classified(None if unanswered else found.answer, steps, state)

    def _snapshot(self, row: Row | Resident) -> Snapshot:
        """The state; raises `NotFinite` for a copy that nothing could go on from."""
        if isinstance(row, np.ndarray) and not np.isfinite(row).all():
            raise not_finite()
        item = self.job.items[self.index]
        if not self.job.kind.predicts:
            answer = _NEW.answer if self.found.answer is None else self.found.answer
            return Snapshot(row, self.steps, word=item.word, answer=answer)
        start = item.start
        writer, constraint = self._writer, self.job.sampling.constraint
        return Snapshot(
            row,
            self.steps,
            self.pending,
            seed=item.seed,
            choice=item.choice,
            window=tuple(self.window),
            word=item.word,
            utf8=writer.utf8 if writer else start.utf8 if start else b"",
            held=writer.held if writer else start.held if start else "",
            constraint=b"" if constraint is None else constraint.identity,
            spelled=b"" if self.spelling is None else self.spelling.spelled,
        )


def not_finite() -> NotFinite:
    """The error of a stream whose numbers are more than the model can compute with."""
    return NotFinite(
        "the numbers of the model become NaN or infinite with this input, so there is no result "
        "and no state to go on from: send smaller numbers, or go on from an earlier state"
    )
