"""One sequence of a job while the engine works on it."""

from array import array
from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from sruserve.kernels.slots import WINDOW
from sruserve.model.heads.crf import LinearChain
from sruserve.model.text.codec import Codec, SpacedPieces
from sruserve.server.engine.constrained.protocols import MAX_MATCH_BYTES, TextPosition
from sruserve.server.engine.detokenizer import Detokenizer, single_bytes
from sruserve.server.engine.job import Job
from sruserve.server.engine.results import (
    COMPLETE,
    LENGTH,
    Finish,
    Generated,
    Logprobs,
)
from sruserve.server.engine.sequence_outputs import SequenceOutputs
from sruserve.server.engine.snapshot import Row, Snapshot, StateOutput
from sruserve.server.engine.state_cache.cache import CachedState
from sruserve.server.engine.state_cache.transfers import Transfer

EMPTY_SNAPSHOT = Snapshot(np.zeros(0, np.float32))
NO_IDS = np.zeros(0, np.int64)

Ids = NDArray[np.int64]


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
    detokenizer: makes its sampled tokens into text; None: there are none, or no codec.
    samples: whether tokens are sampled after its inputs.
    sampling_cost: inputs that take as long as to sample the first of these.
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
        start = item.start or EMPTY_SNAPSHOT
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
        self.sampling_cost = 0
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
        self.detokenizer = None
        if job.kind.samples and codec is not None:
            pieces: Sequence[bytes] = codec.pieces
            if codec.ends is not None:
                pieces = SpacedPieces(codec, int(known[-1]) if len(known) else -1)
            self.detokenizer = Detokenizer(
                pieces, job.sampling.stop, start.utf8, start.held_back, single_bytes(codec)
            )
        self._text: list[str] = []
        if self.detokenizer and len(item.inputs):  # a new prompt completes the text held back
            self._text.append(self.detokenizer.flush())
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
        self.inputs = self.known = NO_IDS
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
        if self.detokenizer is not None:
            text = self.detokenizer.write_all(tokens)
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
        if self.detokenizer is not None:
            ignore = self.job.sampling.min_tokens - self.generated
            text, used, stop = self.detokenizer.write(tokens, ignore)
            self._text.append(text)
        tokens = tokens[:used]
        self._tokens.extend(tokens)
        self._logprobs.extend(logprobs[:used])
        self.generated += used
        self._since_checkpoint += used if self.detokenizer is None else len(text)
        if self.constraint_state is not None:
            self.constraint_state.commit(used)
        return used, self.ending if stop is None else Finish("stop", stop), len(text)

    def take_text(self, now: float, ends: bool = False) -> Generated:
        """Return what was generated since the last call.

        ends: nothing can continue the text, so what the detokenizer holds back belongs to it.
        """
        self._read()
        if ends and self.detokenizer is not None:
            self._text.append(self.detokenizer.flush())
        self.last_flush, self._window = now, self.window
        generated = Generated("".join(self._text), self._tokens, self._logprobs)
        self._text, self._tokens, self._logprobs = [], array("i"), []
        return generated

    def take_checkpoint(self, now: float) -> Generated:
        """Return what was generated since the last call, which an intermediate state follows."""
        self._since_checkpoint = 0
        return self.take_text(now)
