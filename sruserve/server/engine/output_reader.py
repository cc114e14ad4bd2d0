"""Read a step's outputs: classes, labels, log-probabilities, or the outputs themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sruserve.kernels.devices import copy_to_device
from sruserve.model.folder import Model
from sruserve.model.heads.crf import LinearChain
from sruserve.model.heads.softmaxes import MAX_NUMBERS
from sruserve.model.reader.spans import best_spans
from sruserve.model.text.codec import token_text
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Logprobs
from sruserve.server.engine.sequence import ActiveSequence
from sruserve.server.engine.sequence_outputs import Floats, SequenceOutputs
from sruserve.server.engine.snapshot import StateOutput
from sruserve.server.engine.state_cache.pool import indices


@dataclass(slots=True)
class StepResult:
    """The result of a step for one sequence; it changes the sequence only when it is settled.

    row: the new state row; -1 once settled. consumed: inputs consumed, or 1 in a decode.
    tokens: those that were sampled: an array, (tokens) int32, if the sequence is `plain`.
    """

    sequence: ActiveSequence
    row: int
    consumed: int
    tokens: list[int] | NDArray[np.int32] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    outputs: SequenceOutputs = field(default_factory=SequenceOutputs)


OutputSlice = tuple[StepResult, slice]  # a step result, and its rows of the outputs


class OutputReader:
    """Reads the outputs of one model.

    max_block_scores: scores of a step that are in memory at a time.
    outputs: scores of a row; 0 without a head.
    """

    def __init__(self, model: Model, max_block_scores: int = MAX_NUMBERS) -> None:
        self._network, self._codec = model.network, model.codec
        self.outputs, self._max_block_scores = model.config.outputs or 0, max_block_scores
        self._exclusive = model.config.activation == "softmax"
        reader = model.config.reader
        self._max_answer_words = 1 if reader is None else reader.max_answer_words

    def read(self, reads: Sequence[OutputSlice], hidden: Tensor) -> None:
        """Add to each step result what its job's kind needs of `hidden`, (rows, width)."""
        by_kind: dict[JobKind, list[OutputSlice]] = {}
        for read in reads:
            by_kind.setdefault(read[0].sequence.job.kind, []).append(read)
        for kind, kind_reads in by_kind.items():
            match kind:
                case JobKind.CLASSIFY | JobKind.REGRESS:
                    self._classify(kind_reads, hidden)
                case JobKind.COMPARE:
                    self._compare(kind_reads, hidden)
                case JobKind.ANSWER:
                    self._answer(kind_reads, hidden)
                case JobKind.TAG:
                    self._tag(kind_reads, hidden)
                case JobKind.REGRESS_STEPS:
                    self._regress(kind_reads, hidden)
                case JobKind.ENCODE:
                    outputs = _numpy(hidden)
                    for step_result, rows in kind_reads:
                        step_result.outputs.values.append(outputs[rows].copy())
                case JobKind.EMBED:
                    self._embed(kind_reads, hidden)
                case JobKind.SCORE:
                    for step_result, rows in kind_reads:
                        self._score(step_result, hidden[rows])

    def logprobs(self, logits: Tensor, tokens: Tensor, top: int) -> list[Logprobs]:
        """The log-probabilities to report for tokens that were picked.

        logits: (rows, outputs), by which they were. tokens: (rows), int64.
        """
        return self._token_logprobs(self._network.log_probs(logits), tokens.unsqueeze(1), top)

    def classes(self, hidden: Tensor) -> Floats:
        """The class probabilities of outputs, (rows, classes), or what the head has instead."""
        return self._probabilities(self._network.logits(hidden))

    def _classify(self, reads: Sequence[OutputSlice], hidden: Tensor) -> None:
        if len(reads) < hidden.shape[0]:
            hidden = _last_rows(reads, hidden)
        for block in self.blocks(len(reads)):
            self._add_scores(reads[block], self._network.logits(hidden[block]))

    def _compare(self, reads: Sequence[OutputSlice], hidden: Tensor) -> None:
        """Class probabilities of pairs; `hidden` has every step of both sequences of each pair."""
        lengths = [steps for step_result, _ in reads for steps in step_result.sequence.parts]
        self._add_scores(reads, self._network.compare(hidden, lengths))

    def _answer(self, reads: Sequence[OutputSlice], hidden: Tensor) -> None:
        """The best spans of documents; `hidden` has two scores for every word of each pair."""
        scores = hidden.float().cpu()
        for step_result, rows in reads:
            sequence = step_result.sequence
            document = scores[rows.start : rows.start + sequence.parts[0]]
            # Contiguous columns, so that the bits of a sum do not depend on the step's other rows.
            starts, ends = document.T.contiguous().softmax(1).numpy()
            if np.isfinite(starts).all() and np.isfinite(ends).all():
                step_result.outputs.spans = best_spans(
                    starts, ends, self._max_answer_words, sequence.job.n_best
                )

    def _add_scores(self, reads: Sequence[OutputSlice], scores: Tensor) -> None:
        """Add a row of `scores`, (reads, classes), to each step result, with its probabilities."""
        probabilities, logits = self._probabilities(scores), None
        # A copy: a view would keep the whole step's for the sequence's life.
        for row, (step_result, _) in enumerate(reads):
            outputs = step_result.outputs
            outputs.probabilities = probabilities[row].copy()
            if step_result.sequence.job.raw_scores:
                logits = _all_or_nan(_numpy(scores)) if logits is None else logits
                outputs.logits = logits[row].copy()

    def _embed(self, reads: Sequence[OutputSlice], hidden: Tensor) -> None:
        """The last outputs; states also carry the class probabilities after them."""
        vectors = _numpy(_last_rows(reads, hidden))
        for (step_result, _), vector in zip(reads, vectors, strict=True):
            step_result.outputs.vector = vector.copy()
        with_state = [
            read for read in reads if read[0].sequence.job.state_output is not StateOutput.NONE
        ]
        if with_state and self.outputs:
            self._classify(with_state, hidden)

    def _tag(self, reads: Sequence[OutputSlice], hidden: Tensor) -> None:
        """The likeliest label of each step, its probability, and the last step's probabilities."""
        if self._network.crf is not None:
            self._extend_paths(self._network.crf, reads, hidden)
            return
        labels = np.empty(len(hidden), np.int64)
        values = np.empty(len(hidden), np.float32)
        for block in self.blocks(len(hidden)):
            probabilities = self._probabilities(self._network.logits(hidden[block]))
            labels[block] = likeliest = probabilities.argmax(1)
            values[block] = np.take_along_axis(probabilities, likeliest[:, None], 1)[:, 0]
        last = _last_rows(reads, hidden)
        for block in self.blocks(len(reads)):
            at_ends = self._probabilities(self._network.logits(last[block]))
            for (step_result, rows), at_end in zip(reads[block], at_ends, strict=True):
                step_result.outputs = SequenceOutputs(
                    at_end.copy(), values=[values[rows].copy()], labels=[labels[rows].copy()]
                )

    def _extend_paths(self, crf: LinearChain, reads: Sequence[OutputSlice], hidden: Tensor) -> None:
        """The best paths to each label after the last step."""
        for step_result, rows in reads:
            paths = step_result.sequence.outputs.paths
            assert paths is not None
            scores = self._network.logits(hidden[rows])
            paths = crf.extend(paths, _numpy(scores), self._probabilities(scores))
            step_result.outputs = SequenceOutputs(paths=paths)

    def _regress(self, reads: Sequence[OutputSlice], hidden: Tensor) -> None:
        """The values of each step."""
        values = np.empty((len(hidden), self.outputs), np.float32)
        for block in self.blocks(len(hidden)):
            values[block] = self._probabilities(self._network.logits(hidden[block]))
        for step_result, rows in reads:  # a state lives longer than the values of all steps
            own = values[rows].copy()
            step_result.outputs = SequenceOutputs(own[-1].copy(), values=[own])

    def _score(self, step_result: StepResult, hidden: Tensor) -> None:
        """The log-probabilities of the tokens that follow the rows of `hidden`."""
        sequence = step_result.sequence
        next_tokens = sequence.known[sequence.done + 1 : sequence.done + 1 + step_result.consumed]
        targets = copy_to_device(torch.from_numpy(next_tokens), hidden.device).unsqueeze(1)
        # One array, made before the first block. A small array for each block would take the place
        # in the heap that the block leaves, so that each block would extend the heap.
        values = np.empty(len(hidden), np.float32)
        step_result.outputs.values.append(values)
        for block in self.blocks(len(hidden)):
            scores = self._network.log_probs(self._network.logits(hidden[block]))
            values[block] = _numpy(scores.gather(1, targets[block]).squeeze(1))
            if (top := sequence.job.sampling.logprobs) is not None:
                step_result.outputs.logprobs += self._token_logprobs(scores, targets[block], top)

    def _token_logprobs(self, scores: Tensor, tokens: Tensor, top: int) -> list[Logprobs]:
        """The `Logprobs` of tokens, (rows, 1), from log-probabilities, (rows, outputs)."""
        own = scores.gather(1, tokens).squeeze(1).tolist()
        values, ids = scores.topk(min(top, scores.shape[1]))
        rows = zip(tokens.squeeze(1).tolist(), own, ids.tolist(), values.tolist(), strict=True)
        text = partial(token_text, self._codec)
        return [
            Logprobs(text(token), value, dict(zip(map(text, top_ids), top_values, strict=True)))
            for token, value, top_ids, top_values in rows
        ]

    def blocks(self, rows: int) -> list[slice]:
        """Ranges of rows whose scores fit into one block."""
        size = max(1, self._max_block_scores // self.outputs)
        if 0 < rows <= size:
            return [slice(0, rows)]
        return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]

    def _probabilities(self, scores: Tensor) -> Floats:
        probabilities = _numpy(self._network.activation(scores))
        return probabilities if self._exclusive else _all_or_nan(probabilities)


def _last_rows(reads: Sequence[OutputSlice], hidden: Tensor) -> Tensor:
    """The last row of each slice, (slices, width)."""
    return hidden.index_select(0, indices([rows.stop - 1 for _, rows in reads], hidden.device))


def _numpy(values: Tensor) -> Floats:
    """A tensor's values, float32, in host memory."""
    array: Floats = values.float().cpu().numpy()
    return array


def _all_or_nan(values: Floats) -> Floats:
    """Rows (rows, n), with NaN for all numbers of a row that has one that is not finite.

    A softmax does this by itself, and a check of a row then reads one number of it.
    """
    odd = np.asarray(~np.isfinite(values).all(1))
    values[odd] = np.nan
    return values
