"""One sequence of a job while the engine works on it."""

import math
from array import array
from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sruserve.kernels.slots import WINDOW
from sruserve.model.heads.crf import LinearChain
from sruserve.model.text.codec import Codec, SpacedPieces, count_characters
from sruserve.model.text.frames import ENDED
from sruserve.server.engine.constrained.protocols import MAX_MATCH_BYTES, TextPosition
from sruserve.server.engine.detokenizer import Detokenizer, single_bytes
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import (
    COMPLETE,
    LENGTH,
    Answered,
    Classified,
    Embedded,
    Encoded,
    Finish,
    Generated,
    Logprobs,
    Regressed,
    Result,
    Scored,
    Tagged,
)
from sruserve.server.engine.sequence_outputs import SequenceOutputs
from sruserve.server.engine.snapshot import Row, Snapshot, StateOutput
from sruserve.server.engine.state_cache.cache import CachedState
from sruserve.server.engine.state_cache.transfers import Transfer
from sruserve.server.errors import LabelsUndecided, NotFinite

_EMPTY_SNAPSHOT = Snapshot(np.zeros(0, np.float32))
_NO_IDS = np.zeros(0, np.int64)


Ids = NDArray[np.int64]


def positions_of(job: Job) -> list[TextPosition]:
    """Return the position of every text of a job in its constraint; empty without a constraint.

    Without a prompt, a text continues at its state's position in the same constraint. Otherwise
    it starts at the beginning. Texts with the same consumed bytes are read once.
    """
    constraint = job.sampling.constraint
    if constraint is None:
        return []
    positions: list[TextPosition] = []
    begun: dict[bytes, TextPosition] = {}
    for item in job.items:
        start = item.start or _EMPTY_SNAPSHOT
        continues = start.constraint == constraint.identity and not len(item.inputs)
        consumed = start.consumed if continues else b""
        if consumed in begun:
            positions.append(begun[consumed].copy())
        else:
            positions.append(constraint.begin(consumed))
            begun[consumed] = positions[-1]
    return positions


def sequences_of(
    job: Job,
    codec: Codec | None,
    positions: Sequence[TextPosition] = (),
    crf: LinearChain | None = None,
) -> list["ActiveSequence"]:
    """Create a sequence for every item of a job. Choices of one prompt share its tokens."""
    job.unpack()
    if not job.kind.predicts:
        return [
            ActiveSequence(job, index, codec, _NO_IDS, crf=crf) for index in range(len(job.items))
        ]
    known: dict[tuple[int, int], Ids] = {}
    sequences = []
    for index, item in enumerate(job.items):
        pending = item.start.pending if item.start else -1
        key = (id(item.inputs), pending)
        if key not in known:
            tokens: Ids = item.inputs.astype(np.int64, copy=False)
            known[key] = np.concatenate(([pending], tokens)) if pending >= 0 else tokens
        position = positions[index] if positions else None
        sequences.append(ActiveSequence(job, index, codec, known[key], position))
    return sequences


class ActiveSequence:
    """The data of one sequence between two steps.

    row: the pool row of its state after `steps` tokens; -1: the state is `start`, or zeros.
    start: the state that it starts from. cached_start: the same, if it is a cached one.
    upload: the transfer of `start` to `row`, if needed.
    known: its first tokens, if its job predicts: the pending token of its start state, then the
        item's tokens.
    inputs: the inputs to consume; the first `done` of them are consumed.
    pending: its last token, known but not consumed; -1: none.
    outputs: the network's outputs for it.
    samples: whether tokens are sampled after its inputs.
    constraint_state: the position of the sampled text in the constraint.
    crf: decides on the labels of a tagger.
    checkpoint_pending: an intermediate state is being copied, to be sent with its chunk of text.
    by_step: the host needs the scores of each of its steps.
    streams: its text is sent in chunks.
    plain: nothing in its text ends it or is sent with it, so that its text is not needed at once.
    """

    def __init__(
        self,
        job: Job,
        index: int,
        codec: Codec | None,
        known: Ids,
        constraint_state: TextPosition | None = None,
        crf: LinearChain | None = None,
    ) -> None:
        item = job.items[index]
        start = item.start or _EMPTY_SNAPSHOT
        self.job, self.index, self.codec = job, index, codec
        self.seed, self.choice = item.seed, item.choice
        self.row = -1
        self.start: Row | CachedState | None = start.row if item.start else None
        self.cached_start = self.start if isinstance(self.start, CachedState) else None
        self.upload: Transfer | None = None
        # `StateManager.free` releases: the reference to a cached `start`, its pin, a reservation.
        self.retained = self.pinned = self.reserved = False
        self.steps, self.done = start.steps, 0
        self.pending = -1
        self.known = known
        self._window: list[int] = []  # the last tokens before `_tokens`
        self.inputs: NDArray[np.int64] | NDArray[np.float32] = item.inputs
        self.generated = 0
        self.constraint_state = constraint_state
        self.samples = job.kind.samples and self.ending is None
        if job.kind.predicts:
            # The last token is consumed only if a token is sampled after it.
            self.inputs = self.known if self.samples else self.known[:-1]
            if not self.samples and len(self.known):
                self.pending = int(self.known[-1])
            self._window = [*start.window, *item.inputs[-WINDOW:].tolist()][-WINDOW:]
        self.outputs = SequenceOutputs(start.probabilities if len(start.probabilities) else None)
        self.crf = crf
        if crf is not None:
            self.outputs.paths = crf.begin(start.probabilities)
        self.admitted = False  # the sequence may hold a state
        self.dropped = False  # the job ended early
        self.checkpoint_pending = False
        self._since_checkpoint = 0  # characters, or tokens without a codec
        self._detokenizer = None
        if job.kind.samples and codec is not None:
            pieces: Sequence[bytes] = codec.pieces
            if codec.ends is not None:
                pieces = SpacedPieces(codec, int(known[-1]) if len(known) else -1)
            self._detokenizer = Detokenizer(
                pieces, job.sampling.stop, start.utf8, start.held_back, single_bytes(codec)
            )
        self._text: list[str] = []
        if self._detokenizer and len(item.inputs):  # a new prompt completes the text held back
            self._text.append(self._detokenizer.flush())
        self._tokens = array("i")
        self._unread = 0  # the last tokens that are not in `_text` yet
        self._unread_characters = 0
        self._logprobs: list[Logprobs] = []
        self.last_flush = 0.0
        sampling = job.sampling
        self.by_step = sampling.by_step
        self.plain = not (sampling.stop or self.by_step or self.emits_checkpoints)
        self.streams, self.max_tokens = job.stream, sampling.max_tokens

    @property
    def source(self) -> int:
        """The pool row that the next step reads; -1: none."""
        if self.row >= 0 or self.cached_start is None:
            return self.row
        return self.cached_start.row

    @property
    def remaining(self) -> int:
        """The number of inputs that are not consumed yet."""
        return len(self.inputs) - self.done

    @property
    def parts(self) -> tuple[int, ...]:
        """The length of the sequence, or the two lengths of a pair."""
        first = self.job.items[self.index].first
        return (len(self.inputs),) if first is None else (first, len(self.inputs) - first)

    def forget_inputs(self) -> None:
        """Free the consumed inputs and the initial state: the sequence continues from its row."""
        self.inputs = self.known = _NO_IDS
        self.done = 0
        if self.cached_start is None:
            self.start = None

    @property
    def needs_constraint(self) -> bool:
        """Whether the constraint has not processed the last sampled token yet."""
        return self.constraint_state is not None and self.constraint_state.late

    @property
    def uncommitted(self) -> int:
        """The number of tokens that the constraint has accepted in this step."""
        return 0 if self.constraint_state is None else self.constraint_state.uncommitted

    def ready(self, until: float) -> bool:
        """Whether a step can sample the next token; waits for its constraint until `until`."""
        return self.constraint_state is None or self.constraint_state.ready(until)

    @property
    def tokens_left(self) -> int:
        """The number of tokens that may still be sampled."""
        left = self.job.sampling.max_tokens - self.generated
        if self.constraint_state is not None:
            left = min(left, MAX_MATCH_BYTES - self.constraint_state.length)
        return left

    @property
    def ending(self) -> Finish | None:
        """The reason why no more tokens are sampled, or None. `write` reports stop strings."""
        if self.constraint_state is not None and self.constraint_state.ended:
            return COMPLETE
        return None if self.tokens_left > 0 else LENGTH

    @property
    def burst_limit(self) -> int:
        """The most tokens of the next burst: until the text may end, or a checkpoint is due."""
        if not self.emits_checkpoints:
            return self.tokens_left
        due = self.job.sampling.state_interval - self._since_checkpoint
        return min(self.tokens_left, max(1, due))

    def checkpoint_in(self, ahead: int) -> int:
        """The tokens until a checkpoint is due, where `ahead` tokens are not settled yet.

        If these make one due, the tokens until the next.
        """
        interval = self.job.sampling.state_interval
        due = interval - self._since_checkpoint - ahead
        return due if due > 0 else interval

    @property
    def emits_checkpoints(self) -> bool:
        """Whether intermediate states are sent with the text."""
        job = self.job
        return (
            bool(job.sampling.state_interval)
            and job.stream
            and job.state_output is StateOutput.COPY
        )

    @property
    def checkpoint_due(self) -> bool:
        return self.emits_checkpoints and self._since_checkpoint >= self.job.sampling.state_interval

    @property
    def decodes(self) -> bool:
        """Whether tokens are still sampled for it, if they were before."""
        return self.admitted and not self.dropped

    @property
    def window(self) -> list[int]:
        """Its last tokens, oldest first."""
        return [*self._window, *self._tokens[-WINDOW:]][-WINDOW:]

    def extend(self, tokens: NDArray[np.int32]) -> None:
        """Append a plain text's next tokens, (tokens), which later calls turn into text."""
        count = len(tokens)
        self.generated += count
        self.steps += count
        self.pending = tokens.item(-1)
        self._tokens.frombytes(tokens.tobytes())
        self._unread += count

    def read(self) -> int:
        """Turn its tokens into text; returns the characters since the last call."""
        self._read()
        characters, self._unread_characters = self._unread_characters, 0
        return characters

    def _read(self) -> None:
        if not self._unread:
            return
        tokens = np.frombuffer(self._tokens[-self._unread :], np.int32)
        self._unread = 0
        if self._detokenizer is not None:
            text = self._detokenizer.write_all(tokens)
            self._text.append(text)
            self._unread_characters += len(text)

    def write(
        self, tokens: Sequence[int], logprobs: Sequence[Logprobs]
    ) -> tuple[int, Finish | None, int]:
        """Append sampled tokens up to the end of the text: (tokens used, finish, characters).

        Raises the `problem` of the constraint, if there is one.
        """
        self._read()
        if self.constraint_state is not None:
            if self.constraint_state.problem is not None:
                # a copy: the traceback refers to this sequence, and so to the error itself
                raise copy(self.constraint_state.problem)
            tokens = tokens[: self.constraint_state.uncommitted]
        used, stop, text = len(tokens), None, ""
        if self._detokenizer is not None:
            ignore = self.job.sampling.min_tokens - self.generated
            text, used, stop = self._detokenizer.write(tokens, ignore)
            self._text.append(text)
        tokens = tokens[:used]
        self._tokens.extend(tokens)
        self._logprobs.extend(logprobs[:used])
        self.generated += used
        self._since_checkpoint += used if self._detokenizer is None else len(text)
        if self.constraint_state is not None:
            self.constraint_state.commit(used)
        return used, self.ending if stop is None else Finish("stop", stop), len(text)

    def take_text(self, now: float) -> Generated:
        """Return what was generated since the last call."""
        self._read()
        self.last_flush, self._window = now, self.window
        generated = Generated("".join(self._text), self._tokens, self._logprobs)
        self._text, self._tokens, self._logprobs = [], array("i"), []
        return generated

    def take_checkpoint(self, now: float) -> tuple[Generated, Snapshot]:
        """Return what was generated since the last call, and the state after it without its row."""
        self._since_checkpoint = 0
        return self.take_text(now), self._snapshot(_EMPTY_SNAPSHOT.row)

    def finish(self, row: Row | CachedState | None, finish: Finish) -> Result:
        """Return the last result, with the end state if `row` holds it."""
        job = self.job
        if self.crf is not None:
            return self._labelled(self.crf, row)
        self._read()
        continues = job.state_output is not StateOutput.NONE and finish is not COMPLETE
        if self._detokenizer is not None and not continues and finish.stop_reason is None:
            self._text.append(self._detokenizer.flush())
        state = None if row is None else self._snapshot(row)
        if not job.kind.samples:
            return self._collected_result(state)
        last = self.take_text(0.0)
        return Generated(
            last.text,
            last.tokens,
            last.logprobs,
            finish_reason=finish.finish_reason,
            stop_reason=finish.stop_reason,
            state=state,
        )

    def _collected_result(self, state: Snapshot | None) -> Result:
        """Return the result of a job that samples no tokens, from the outputs of all steps."""
        item, outputs, steps = self.job.items[self.index], self.outputs, len(self.inputs)
        match self.job.kind:
            case JobKind.TAG:
                start = item.start or _EMPTY_SNAPSHOT
                before = int(start.probabilities.argmax()) if len(start.probabilities) else None
                labels = np.concatenate([_NO_IDS, *outputs.labels])
                scores = np.concatenate([_EMPTY_SNAPSHOT.probabilities, *outputs.values])
                if np.isnan(scores).any():
                    raise not_finite()
                return Tagged(labels, scores, before, steps, state)
            case JobKind.REGRESS_STEPS:
                last = outputs.probabilities
                width = 0 if last is None else len(last)
                every = np.concatenate([np.zeros((0, width), np.float32), *outputs.values])
                if np.isnan(every).any():
                    raise not_finite()
                return Regressed(last, steps, state, every)
            case JobKind.ANSWER:
                if not outputs.spans:
                    raise not_finite()
                return Answered(outputs.spans, steps, state)
            case JobKind.ENCODE:
                encoded = np.concatenate(outputs.values) if steps else np.zeros((0, 0), np.float32)
                return Encoded(encoded, steps, state)
            case JobKind.EMBED:
                if outputs.vector is not None and not np.isfinite(outputs.vector).all():
                    raise not_finite()
                return Embedded(outputs.vector, steps, state)
            case JobKind.SCORE:
                # fsum rounds once, so the sum does not depend on how the engine split the input.
                total = math.fsum(value for values in outputs.values for value in values.tolist())
                if not math.isfinite(total):
                    raise not_finite()
                targets = self.known[1:]
                characters = count_characters(self.codec, self.known)
                return Scored(total, len(targets), characters, steps, state, outputs.logprobs)
        probabilities = outputs.logits if self.job.raw_scores else outputs.probabilities
        # If one of them is NaN, all are.
        if probabilities is not None and math.isnan(probabilities.item(-1)):
            raise not_finite()
        if self.job.kind is JobKind.REGRESS:
            return Regressed(probabilities, steps, state)
        return Classified(probabilities, steps, state)

    def _labelled(self, crf: LinearChain, row: Row | CachedState | None) -> Tagged:
        """Return the labels that are final, with the end state if `row` holds it."""
        item, paths = self.job.items[self.index], self.outputs.paths
        assert paths is not None
        labels, scores, rest = crf.settle(paths) if item.more else crf.finish(paths)
        if (pending := len(rest.steps)) > crf.window:
            raise LabelsUndecided(
                f"more than {crf.window} labels are open until the CRF reads more, and a state "
                f"holds at most {crf.window} open labels: send the whole input in one request, or "
                "save the model with a larger `crf_window`; the stream keeps its previous state"
            )
        if np.isnan(scores).any() or not rest.is_finite:
            raise not_finite()
        before = paths.before if paths.before >= 0 else None
        state = None
        if row is not None:
            packed, (text, places) = rest.pack(), item.tail(pending)
            if not np.isfinite(packed).all():
                raise not_finite()
            state = replace(
                self._snapshot(row),
                word=item.word if item.more else ENDED,
                held_back=text,
                window=places,
                probabilities=packed,
            )
        return Tagged(labels, scores, before, len(self.inputs), state, pending)

    def _snapshot(self, row: Row | CachedState) -> Snapshot:
        """Return the end state. Raises `NotFinite` if `row` is a copy that is not finite."""
        if isinstance(row, np.ndarray) and not np.isfinite(row).all():
            raise not_finite()
        item = self.job.items[self.index]
        if not self.job.kind.predicts:
            probabilities = (
                _EMPTY_SNAPSHOT.probabilities
                if self.outputs.probabilities is None
                else self.outputs.probabilities
            )
            return Snapshot(row, self.steps, word=item.word, probabilities=probabilities)
        start = item.start
        detokenizer, constraint = self._detokenizer, self.job.sampling.constraint
        return Snapshot(
            row,
            self.steps,
            self.pending,
            seed=self.seed,
            choice=self.choice,
            window=tuple(self.window),
            word=item.word,
            utf8=detokenizer.utf8 if detokenizer else start.utf8 if start else b"",
            held_back=detokenizer.held_back if detokenizer else start.held_back if start else "",
            constraint=b"" if constraint is None else constraint.identity,
            consumed=b"" if self.constraint_state is None else self.constraint_state.consumed,
        )


def not_finite() -> NotFinite:
    """Return the error for a sequence whose result or state has NaN or infinite numbers."""
    return NotFinite(
        "the model computes NaN or infinite numbers for this input, so there is no result: change "
        "the input, or go back to an earlier step if it continues a stream"
    )
