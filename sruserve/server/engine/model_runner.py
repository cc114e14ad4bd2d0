"""Compute one step: read the sequences' state rows, write new ones, sample. Settles nothing."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.kernels.devices import StepThrottle
from sruserve.model.folder import Model
from sruserve.model.heads.softmaxes import MAX_NUMBERS
from sruserve.server.engine.batch import Batch
from sruserve.server.engine.graph_decoder import Burst, GraphDecoder
from sruserve.server.engine.ledger import Due
from sruserve.server.engine.output_reader import OutputReader, OutputSlice, StepResult
from sruserve.server.engine.sampling.logits_processors import GrammarWaitBudget
from sruserve.server.engine.sequence import ActiveSequence
from sruserve.server.engine.state_cache.pool import StatePool, indices
from sruserve.server.engine.step_sampler import StepSampler


class ModelRunner:
    """Runs batches on a model, with states in the rows of a pool.

    max_block_scores: see `OutputReader`.
    """

    def __init__(self, model: Model, pool: StatePool, max_block_scores: int = MAX_NUMBERS) -> None:
        self._network, self._pool = model.network, pool
        self._output_reader = OutputReader(model, max_block_scores)
        self._graph_decoder: GraphDecoder | None = None
        self._throttle = StepThrottle(self._network.device)
        self._grammar_wait_budget = GrammarWaitBudget()

    def warm_up(self, max_sequences: int, burst: int) -> None:
        """On a GPU, capture bursts of up to `max_sequences` sequences and `burst` steps."""
        decoder = self._network.decoder(self._pool.rows)
        if decoder is not None:
            self._graph_decoder = GraphDecoder(decoder, self._network.device, max_sequences, burst)

    def graphed(self, decodes: list[ActiveSequence]) -> list[ActiveSequence]:
        """Those of the decoding sequences that graphs decode; none without a GPU."""
        if self._graph_decoder is None:
            return []
        if self._graph_decoder.holds(decodes):
            return decodes
        return [sequence for sequence in decodes if not sequence.by_step]

    def follows(self, sequences: Sequence[ActiveSequence]) -> bool:
        """Whether a burst of these can be launched while the one before it runs."""
        return self._graph_decoder is not None and self._graph_decoder.follows(sequences)

    def launch(
        self, sequences: Sequence[ActiveSequence], steps: int, begun: float, alone: bool = True
    ) -> Burst | None:
        """Launch a burst of up to `steps` steps; None if all of its tokens are on their way.

        begun: the time of the launch. alone: nothing else is launched with it.

        A failure leaves the pool unchanged.
        """
        decoder = self._graph_decoder
        assert decoder is not None
        limits = decoder.limits(sequences, steps)
        count = int(np.count_nonzero(limits))
        if not count:
            return None
        rows = self._pool.acquire(count, clear=False)
        try:
            return decoder.launch(limits, rows, begun, alone)
        except BaseException:
            self._pool.release_all(rows)
            decoder.forget()
            raise

    def collect(self, burst: Burst) -> int:
        """Wait for the oldest burst; see `GraphDecoder.collect`."""
        assert self._graph_decoder is not None
        return self._graph_decoder.collect(burst)

    def due(self, now: float, interval: float) -> list[Due]:
        """The plain texts to read after a burst; see `GraphDecoder.due`."""
        assert self._graph_decoder is not None
        return self._graph_decoder.due(now, interval)

    def leave(self, sequence: ActiveSequence) -> None:
        """Let a sequence that ends have what bursts have added to its text."""
        if self._graph_decoder is not None:
            self._graph_decoder.leave(sequence)

    def forget(self) -> None:
        """Forget the sequences of bursts, also of those that are not settled."""
        if self._graph_decoder is not None:
            self._graph_decoder.forget()

    def step(self, batch: Batch, burst: int, interrupted: Callable[[], bool]) -> list[StepResult]:
        """Compute a step for every sequence of `batch`; up to `burst` steps if all of them decode.

        interrupted: returns whether to end a burst; called between its steps.

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
        if self._graph_decoder is not None:
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
            self._throttle.step()
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
        sampler = StepSampler(
            step_results, burst, self._network, self._output_reader, self._graph_decoder,
            self._grammar_wait_budget,
        )  # fmt: skip
        columns = []
        for step in range(burst):
            tokens = sampler(hidden, step)
            columns.append(tokens)
            next_hidden = advance_all(tokens) if step + 1 < burst and not sampler.late else None
            if next_hidden is None:
                break
            hidden = next_hidden
        rows = torch.stack(columns, 1).cpu().numpy().astype(np.int32)
        for step_result, row in zip(step_results, rows, strict=True):
            step_result.tokens = row if step_result.sequence.plain else row.tolist()

    def _source_row(self, step_result: StepResult) -> int:
        """The row that a sequence reads. A request's state is first copied to its new row (CPU)."""
        sequence = step_result.sequence
        if sequence.row >= 0 or not isinstance(sequence.start, np.ndarray):
            return sequence.source
        self._pool.rows[step_result.row] = torch.from_numpy(sequence.start)
        return step_result.row


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
        if kind.reads_last_step:
            if step_result.consumed < sequence.remaining:
                continue
            begin = end - 1
        if not kind.samples:
            reads.append((step_result, slice(rows, rows + end - begin)))
        elif sequence.samples:
            sampled.append((step_result, rows))
        else:
            continue
        parts.append(np.arange(begin, end, dtype=np.int64))
        rows += end - begin
    return np.concatenate(parts), sampled, reads
