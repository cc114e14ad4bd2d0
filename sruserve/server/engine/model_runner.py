"""Compute one step: read the sequences' state rows, write new ones, sample. Settles nothing."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.kernels.devices import StepThrottle
from sruserve.model.folder import Model
from sruserve.server.engine.batch import Batch
from sruserve.server.engine.graph_decoder import GraphDecoder
from sruserve.server.engine.job import JobKind
from sruserve.server.engine.output_reader import OutputReader, OutputSlice, StepResult
from sruserve.server.engine.sampling.logits_processors import (
    GrammarWaitBudget,
    LogitsProcessor,
    Pick,
)
from sruserve.server.engine.sampling.sampler import Sampler
from sruserve.server.engine.state_cache.pool import StatePool, indices

# Kinds of jobs that need the output of their last step only.
_LAST_STEP = {JobKind.CLASSIFY, JobKind.REGRESS, JobKind.EMBED, JobKind.GENERATE}


class ModelRunner:
    """Runs batches on a model, with states in the rows of a pool."""

    def __init__(self, model: Model, pool: StatePool) -> None:
        self._network, self._pool = model.network, pool
        self._outputs = model.config.outputs or 0
        self._output_reader = OutputReader(model)
        self._graph_decoder: GraphDecoder | None = None
        self._pace = StepThrottle(self._network.device)
        self._grammar_wait_budget = GrammarWaitBudget()

    def warm_up(self, max_sequences: int, burst: int) -> None:
        """On a GPU, capture bursts of up to `max_sequences` sequences and `burst` steps."""
        decoder = self._network.decoder(self._pool.rows)
        if decoder is not None:
            self._graph_decoder = GraphDecoder(decoder, self._network.device, max_sequences, burst)

    def step(self, batch: Batch, burst: int, interrupted: Callable[[], bool]) -> list[StepResult]:
        """Compute a step for every sequence of `batch`; up to `burst` steps if all of them decode.

        interrupted: returns whether to end a burst; called between its steps, or once before a
            burst that runs on a GPU.

        A failure leaves the pool and the sequences unchanged.
        """
        sequences = [*batch.decodes, *(sequence for sequence, _ in batch.inputs)]
        counts = [1] * len(batch.decodes) + [count for _, count in batch.inputs]
        step_results = [
            StepResult(sequence, row, count)
            for sequence, row, count in zip(
                sequences, self._pool.acquire(len(sequences)), counts, strict=True
            )
        ]
        try:
            self._compute(batch, step_results, burst, interrupted)
        except BaseException:
            for step_result in step_results:
                self._pool.release(step_result.row)
            raise
        return step_results

    def replay(self, replays: Sequence[tuple[StepResult, int]]) -> None:
        """Write the states after the first `count` inputs of each burst again, without sampling.

        replays: pairs (step result, count); the inputs are the pending token, then the sampled
            ones.
        """
        inputs: list[int] = []
        offsets = [0]
        for step_result, count in replays:
            inputs += (step_result.sequence.pending, *step_result.tokens[: count - 1])
            offsets.append(len(inputs))
        self._network.hidden(
            torch.tensor(inputs),
            RaggedBatch(
                torch.tensor(offsets),
                self._pool.rows,
                torch.tensor([step_result.sequence.row for step_result, _ in replays]),
                torch.tensor([step_result.row for step_result, _ in replays]),
            ),
        )

    def _compute(
        self,
        batch: Batch,
        step_results: list[StepResult],
        burst: int,
        interrupted: Callable[[], bool],
    ) -> None:
        source = [self._source_row(step_result) for step_result in step_results]
        if self._graph_decoder is not None and not batch.inputs:
            if not any(r.sequence.job.sampling.by_step for r in step_results):
                steps = 1 if interrupted() else min(burst, self._graph_decoder.max_steps)
                self._decode(self._graph_decoder, step_results, source, steps)
                return
            burst = 1  # the host needs the scores of every step
        lengths, sources, targets = _batch_layout(step_results, source)
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        rows = np.array([sources, targets], np.int64)
        source_rows, target_rows = torch.from_numpy(rows[0]), torch.from_numpy(rows[1])
        ragged = RaggedBatch(torch.from_numpy(offsets), self._pool.rows, source_rows, target_rows)
        decodes = len(batch.decodes)
        output_rows, sampled, reads = _output_rows(step_results[:decodes], step_results[decodes:])
        hidden = self._network.hidden(_inputs(batch), ragged, torch.from_numpy(output_rows))
        self._output_reader.read(reads, hidden)
        if not (reads or sampled):
            self._pace.step()
        if not sampled:
            return
        if len(sampled) < len(hidden):
            hidden = hidden.index_select(0, indices([row for _, row in sampled], hidden.device))
        sampled_results = [step_result for step_result, _ in sampled]
        if batch.inputs:
            self._sample(sampled_results, hidden, 1, lambda _: None)
            return
        # The further steps of a burst update the target rows in place.
        ragged = RaggedBatch(ragged.offsets, ragged.states, target_rows, target_rows)

        def advance_all(tokens: Tensor) -> Tensor | None:
            return None if interrupted() else self._network.hidden(tokens.cpu(), ragged)

        self._sample(sampled_results, hidden, burst, advance_all)

    def _decode(
        self, decoder: GraphDecoder, step_results: list[StepResult], source: list[int], steps: int
    ) -> None:
        """Run and sample a burst of `steps` steps on the GPU."""
        sequences, target = [r.sequence for r in step_results], [r.row for r in step_results]
        picked = decoder.run(sequences, source, target, _uniforms(step_results, steps))
        for step_result, tokens in zip(step_results, picked, strict=True):
            step_result.tokens = tokens

    def _sample(
        self,
        step_results: list[StepResult],
        hidden: Tensor,
        burst: int,
        advance_all: Callable[[Tensor], Tensor | None],
    ) -> None:
        """Sample a token per sequence, run the tokens, and repeat, up to `burst` times.

        advance_all: runs the tokens and returns the next `hidden`, or None to end the burst.
        """
        sampling = [step_result.sequence.job.sampling for step_result in step_results]
        pick = self._picker(step_results, burst)
        with_logprobs = [i for i, s in enumerate(sampling) if s.logprobs is not None]
        columns = []
        for step in range(burst):
            logits = self._network.logits(hidden)
            tokens = pick(logits, step)
            columns.append(tokens)
            for i in with_logprobs:
                logprobs = self._output_reader.logprobs(
                    logits[i], int(tokens[i]), sampling[i].logprobs or 0
                )
                step_results[i].logprobs.append(logprobs)
            late = isinstance(pick, LogitsProcessor) and pick.late
            next_hidden = advance_all(tokens) if step + 1 < burst and not late else None
            if next_hidden is None:
                break
            hidden = next_hidden
        for step_result, picked in zip(step_results, torch.stack(columns, 1).tolist(), strict=True):
            step_result.tokens = picked

    def _picker(self, step_results: list[StepResult], burst: int) -> Pick:
        """The function that picks tokens, (sequences) int64, from scores at a step of the burst."""
        sequences, uniforms = [r.sequence for r in step_results], _uniforms(step_results, burst)
        sampling = [sequence.job.sampling for sequence in sequences]
        pick: Pick
        if self._graph_decoder is not None:  # one kernel for all, so no token depends on the batch
            pick = partial(self._graph_decoder.pick, sequences, uniforms)
        else:
            windows = [sequence.window for sequence in sequences]
            pick = Sampler(sampling, windows, uniforms, self._network.device)
        if not any(s.adjusts for s in sampling):
            return pick
        return LogitsProcessor(pick, sequences, self._outputs, self._grammar_wait_budget)

    def _source_row(self, step_result: StepResult) -> int:
        """The row that a sequence reads. A request's state is first copied to its new row (CPU)."""
        sequence = step_result.sequence
        if sequence.row >= 0 or not isinstance(sequence.start, np.ndarray):
            return sequence.source
        self._pool.rows[step_result.row] = torch.from_numpy(sequence.start)
        return step_result.row


def _uniforms(step_results: list[StepResult], steps: int) -> NDArray[np.float64]:
    """The sequences' random numbers for the next steps, (steps, sequences)."""
    return np.stack(
        [r.sequence.uniforms(r.sequence.steps + r.consumed, steps) for r in step_results], 1
    )


def _inputs(batch: Batch) -> Tensor:
    """The packed inputs: pending tokens of the decodes, then the next inputs of the others."""
    parts: list[NDArray[np.int64] | NDArray[np.float32]] = [
        sequence.inputs[sequence.done : sequence.done + count] for sequence, count in batch.inputs
    ]
    if batch.decodes:
        parts.insert(0, np.array([sequence.pending for sequence in batch.decodes], np.int64))
    return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts))


def _batch_layout(
    step_results: Sequence[StepResult], source: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """Lengths, source rows and target rows of a step's sequences; a pair has two of each."""
    lengths: list[int] = []
    sources: list[int] = []
    targets: list[int] = []
    for step_result, row in zip(step_results, source, strict=True):
        parts = step_result.sequence.parts if step_result.sequence.job.kind.reads_pairs else ()
        for length in parts[:-1]:
            lengths.append(length)
            sources.append(-1)
            targets.append(-1)
        lengths.append(parts[-1] if parts else step_result.consumed)
        sources.append(row)
        targets.append(step_result.row)
    return lengths, sources, targets


def _output_rows(
    decodes: Sequence[StepResult], inputs: Sequence[StepResult]
) -> tuple[NDArray[np.int64], list[tuple[StepResult, int]], list[OutputSlice]]:
    """The input rows whose outputs are needed, then the uses of those outputs.

    The uses are pairs of a step result and the output that it samples, and slices of outputs to
    read.
    """
    parts = [np.arange(len(decodes), dtype=np.int64)]
    sampled = [(step_result, i) for i, step_result in enumerate(decodes)]
    reads: list[OutputSlice] = []
    end = rows = len(decodes)
    for step_result in inputs:
        sequence, kind = step_result.sequence, step_result.sequence.job.kind
        begin, end = end, end + step_result.consumed
        if kind in _LAST_STEP:
            if step_result.consumed < sequence.remaining:
                continue
            begin = end - 1
        if kind is not JobKind.GENERATE:
            reads.append((step_result, slice(rows, rows + end - begin)))
        elif sequence.samples:
            sampled.append((step_result, rows))
        else:
            continue
        parts.append(np.arange(begin, end, dtype=np.int64))
        rows += end - begin
    return np.concatenate(parts), sampled, reads
