"""The last result of a sequence, and the state that continues it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from sruserve.model.heads.crf import LinearChain
from sruserve.model.text.codec import count_characters
from sruserve.model.text.frames import ENDED
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import (
    COMPLETE,
    Answered,
    Classified,
    Embedded,
    Encoded,
    Finish,
    Generated,
    Regressed,
    Result,
    Scored,
    Tagged,
)
from sruserve.server.engine.sequence import EMPTY_SNAPSHOT, NO_IDS, ActiveSequence
from sruserve.server.engine.snapshot import Row, Snapshot, StateOutput
from sruserve.server.engine.state_cache.cache import CachedState
from sruserve.server.errors import LabelsUndecided, NotFinite


def result_of(sequence: ActiveSequence, row: Row | CachedState | None, finish: Finish) -> Result:
    """Return the last result of a sequence, with the end state if `row` holds it."""
    if sequence.crf is not None:
        return _labelled(sequence, sequence.crf, row)
    job = sequence.job
    if not job.kind.samples:
        state = None if row is None else snapshot_of(sequence, row)
        return _RESULTS[job.kind](sequence, state)
    continues = job.state_output is not StateOutput.NONE and finish is not COMPLETE
    last = sequence.take_text(0.0, ends=not continues and finish.stop_reason is None)
    return Generated(
        last.text,
        last.tokens,
        last.logprobs,
        finish_reason=finish.finish_reason,
        stop_reason=finish.stop_reason,
        state=None if row is None else snapshot_of(sequence, row),
    )


def snapshot_of(sequence: ActiveSequence, row: Row | CachedState) -> Snapshot:
    """Return the state of a sequence. Raises `NotFinite` if `row` is a copy that is not finite."""
    if isinstance(row, np.ndarray) and not np.isfinite(row).all():
        raise not_finite()
    job = sequence.job
    item = job.items[sequence.index]
    if not job.kind.predicts:
        probabilities = sequence.outputs.probabilities
        if probabilities is None:
            probabilities = EMPTY_SNAPSHOT.probabilities
        return Snapshot(row, sequence.steps, word=item.word, probabilities=probabilities)
    start = item.start
    detokenizer, constraint = sequence.detokenizer, job.sampling.constraint
    position = sequence.constraint_state
    return Snapshot(
        row,
        sequence.steps,
        sequence.pending,
        seed=sequence.seed,
        choice=sequence.choice,
        window=tuple(sequence.window),
        word=item.word,
        utf8=detokenizer.utf8 if detokenizer else start.utf8 if start else b"",
        held_back=detokenizer.held_back if detokenizer else start.held_back if start else "",
        constraint=b"" if constraint is None else constraint.identity,
        consumed=b"" if position is None else position.consumed,
    )


def not_finite() -> NotFinite:
    """Return the error for a sequence whose result or state has NaN or infinite numbers."""
    return NotFinite(
        "the model computes NaN or infinite numbers for this input, so there is no result: change "
        "the input, or go back to an earlier step if it continues a stream"
    )


def _labelled(sequence: ActiveSequence, crf: LinearChain, row: Row | CachedState | None) -> Tagged:
    """Return the labels that are final, with the end state if `row` holds it."""
    item, paths = sequence.job.items[sequence.index], sequence.outputs.paths
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
            snapshot_of(sequence, row),
            word=item.word if item.more else ENDED,
            held_back=text,
            window=places,
            probabilities=packed,
        )
    return Tagged(labels, scores, before, len(sequence.inputs), state, pending)


def _tagged(sequence: ActiveSequence, state: Snapshot | None) -> Tagged:
    start = sequence.job.items[sequence.index].start or EMPTY_SNAPSHOT
    before = int(start.probabilities.argmax()) if len(start.probabilities) else None
    labels = np.concatenate([NO_IDS, *sequence.outputs.labels])
    scores = np.concatenate([EMPTY_SNAPSHOT.probabilities, *sequence.outputs.values])
    if np.isnan(scores).any():
        raise not_finite()
    return Tagged(labels, scores, before, len(sequence.inputs), state)


def _regressed_steps(sequence: ActiveSequence, state: Snapshot | None) -> Regressed:
    last = sequence.outputs.probabilities
    width = 0 if last is None else len(last)
    every = np.concatenate([np.zeros((0, width), np.float32), *sequence.outputs.values])
    if np.isnan(every).any():
        raise not_finite()
    return Regressed(last, len(sequence.inputs), state, every)


def _answered(sequence: ActiveSequence, state: Snapshot | None) -> Answered:
    if not sequence.outputs.spans:
        raise not_finite()
    return Answered(sequence.outputs.spans, len(sequence.inputs), state)


def _encoded(sequence: ActiveSequence, state: Snapshot | None) -> Encoded:
    steps = len(sequence.inputs)
    outputs = np.concatenate(sequence.outputs.values) if steps else np.zeros((0, 0), np.float32)
    return Encoded(outputs, steps, state)


def _embedded(sequence: ActiveSequence, state: Snapshot | None) -> Embedded:
    vector = sequence.outputs.vector
    if vector is not None and not np.isfinite(vector).all():
        raise not_finite()
    return Embedded(vector, len(sequence.inputs), state)


def _scored(sequence: ActiveSequence, state: Snapshot | None) -> Scored:
    outputs = sequence.outputs
    # fsum rounds once, so the sum does not depend on how the engine split the input.
    total = math.fsum(value for values in outputs.values for value in values.tolist())
    if not math.isfinite(total):
        raise not_finite()
    characters = count_characters(sequence.codec, sequence.known)
    tokens, steps = len(sequence.known[1:]), len(sequence.inputs)
    return Scored(total, tokens, characters, steps, state, outputs.logprobs)


def _of_last_step(sequence: ActiveSequence, state: Snapshot | None) -> Classified | Regressed:
    job, outputs, steps = sequence.job, sequence.outputs, len(sequence.inputs)
    values = outputs.logits if job.raw_scores else outputs.probabilities
    # If one of them is NaN, all are.
    if values is not None and math.isnan(values.item(-1)):
        raise not_finite()
    if job.kind is JobKind.REGRESS:
        return Regressed(values, steps, state)
    return Classified(values, steps, state)


_RESULTS: Mapping[JobKind, Callable[[ActiveSequence, Snapshot | None], Result]] = {
    JobKind.CLASSIFY: _of_last_step,
    JobKind.COMPARE: _of_last_step,
    JobKind.REGRESS: _of_last_step,
    JobKind.REGRESS_STEPS: _regressed_steps,
    JobKind.TAG: _tagged,
    JobKind.ANSWER: _answered,
    JobKind.ENCODE: _encoded,
    JobKind.EMBED: _embedded,
    JobKind.SCORE: _scored,
}
