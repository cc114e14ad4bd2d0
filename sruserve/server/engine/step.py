"""Compute one step: read the streams' rows, write fresh ones, sample. Nothing is settled here."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.kernels.devices import Pace
from sruserve.model.folder import Model
from sruserve.server.engine.adjusting import Adjusted, Patience, Pick
from sruserve.server.engine.batch import Batch
from sruserve.server.engine.decoding import Decoding
from sruserve.server.engine.jobs import Kind
from sruserve.server.engine.pool import StatePool, indices
from sruserve.server.engine.readout import Advance, Read, Readout
from sruserve.server.engine.sampling import Sampler
from sruserve.server.engine.streams import Stream


class Stepper:
    """Runs batches on a model over the rows of a pool."""

    def __init__(self, model: Model, pool: StatePool) -> None:
        self._network, self._pool = model.network, pool
        self._outputs = model.config.outputs or 0
        self._readout = Readout(model)
        self._decoding: Decoding | None = None
        self._pace = Pace(self._network.device)
        self._patience = Patience()

    def warm_up(self, most_streams: int, burst: int) -> None:
        """On a GPU, capture the bursts of up to so many streams and steps."""
        decoder = self._network.decoder(self._pool.rows)
        if decoder is not None:
            self._decoding = Decoding(decoder, self._network.device, most_streams, burst)

    def step(self, batch: Batch, burst: int, interrupted: Callable[[], bool]) -> list[Advance]:
        """One step for every stream of `batch`; decodes alone go on for up to `burst` tokens.

        interrupted: asked between the tokens of a burst, or before one that runs on a GPU. A
        failure leaves pool and streams as they were.
        """
        streams = [*batch.decodes, *(stream for stream, _ in batch.inputs)]
        counts = [1] * len(batch.decodes) + [count for _, count in batch.inputs]
        advances = [
            Advance(stream, row, count)
            for stream, row, count in zip(
                streams, self._pool.acquire(len(streams)), counts, strict=True
            )
        ]
        try:
            self._compute(batch, advances, burst, interrupted)
        except BaseException:
            for advance in advances:
                self._pool.release(advance.row)
            raise
        return advances

    def replay(self, stream: Stream, tokens: Sequence[int], row: int) -> None:
        """Write to `row` the state of `stream` after `tokens` more, without sampling."""
        inputs = torch.tensor([stream.pending, *tokens])
        self._network.hidden(
            inputs,
            RaggedBatch(
                torch.tensor([0, len(inputs)]),
                self._pool.rows,
                torch.tensor([stream.row]),
                torch.tensor([row]),
            ),
        )

    def _compute(
        self,
        batch: Batch,
        advances: list[Advance],
        burst: int,
        interrupted: Callable[[], bool],
    ) -> None:
        source = [self._source(advance) for advance in advances]
        if self._decoding is not None and not batch.inputs:
            if not any(a.stream.job.sampling.by_step for a in advances):
                steps = 1 if interrupted() else min(burst, self._decoding.most_steps)
                self._decode(self._decoding, advances, source, steps)
                return
            burst = 1  # scores come to the host after every step
        lengths, sources, targets = _sequences(advances, source)
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        places = np.array([sources, targets], np.int64)
        source_rows, target_rows = torch.from_numpy(places[0]), torch.from_numpy(places[1])
        ragged = RaggedBatch(torch.from_numpy(offsets), self._pool.rows, source_rows, target_rows)
        decodes = len(batch.decodes)
        wanted, sampled, reads = _wanted(advances[:decodes], advances[decodes:])
        hidden = self._network.hidden(_inputs(batch), ragged, torch.from_numpy(wanted))
        self._readout.read(reads, hidden)
        if not (reads or sampled):
            self._pace.step()
        if not sampled:
            return
        if len(sampled) < len(hidden):
            hidden = hidden.index_select(0, indices([row for _, row in sampled], hidden.device))
        chosen = [advance for advance, _ in sampled]
        if batch.inputs:
            self._sample(chosen, hidden, 1, lambda _: None)
            return
        ragged = RaggedBatch(
            ragged.offsets, ragged.states, target_rows, target_rows
        )  # goes on in place

        def advance_all(tokens: Tensor) -> Tensor | None:
            return None if interrupted() else self._network.hidden(tokens.cpu(), ragged)

        self._sample(chosen, hidden, burst, advance_all)

    def _decode(
        self, decoding: Decoding, advances: list[Advance], source: list[int], steps: int
    ) -> None:
        """A burst on the GPU, sampled there."""
        streams, target = [a.stream for a in advances], [a.row for a in advances]
        picked = decoding.run(streams, source, target, _uniforms(advances, steps))
        for advance, tokens in zip(advances, picked, strict=True):
            advance.tokens = tokens

    def _sample(
        self,
        advances: list[Advance],
        hidden: Tensor,
        burst: int,
        advance_all: Callable[[Tensor], Tensor | None],
    ) -> None:
        """Sample a token per stream, run them all, and so on; `advance_all` ends it with None."""
        sampling = [advance.stream.job.sampling for advance in advances]
        pick = self._picker(advances, burst)
        told = [i for i, s in enumerate(sampling) if s.logprobs is not None]
        columns = []
        for step in range(burst):
            logits = self._network.logits(hidden)
            tokens = pick(logits, step)
            columns.append(tokens)
            for i in told:
                logprobs = self._readout.logprobs(
                    logits[i], int(tokens[i]), sampling[i].logprobs or 0
                )
                advances[i].logprobs.append(logprobs)
            late = isinstance(pick, Adjusted) and pick.late
            following = advance_all(tokens) if step + 1 < burst and not late else None
            if following is None:
                break
            hidden = following
        for advance, row in zip(advances, torch.stack(columns, 1).tolist(), strict=True):
            advance.tokens = row

    def _picker(self, advances: list[Advance], burst: int) -> Pick:
        """What picks tokens, (streams) int64, from scores at a step of the burst."""
        streams, uniforms = [a.stream for a in advances], _uniforms(advances, burst)
        sampling = [stream.job.sampling for stream in streams]
        pick: Pick
        if self._decoding is not None:  # the kernel of the bursts, so that company changes no token
            pick = partial(self._decoding.pick, streams, uniforms)
        else:
            windows = [stream.window for stream in streams]
            pick = Sampler(sampling, windows, uniforms, self._network.device)
        if not any(s.adjusts for s in sampling):
            return pick
        return Adjusted(pick, streams, self._outputs, self._patience)

    def _source(self, advance: Advance) -> int:
        """The row that a stream starts from; on the CPU, a request's state is put in place here."""
        stream = advance.stream
        if stream.row >= 0 or not isinstance(stream.start, np.ndarray):
            return stream.source
        self._pool.rows[advance.row] = torch.from_numpy(stream.start)
        return advance.row


def _uniforms(advances: list[Advance], steps: int) -> NDArray[np.float64]:
    """The streams' random numbers for the next steps, (steps, streams)."""
    return np.stack([a.stream.draws(a.stream.steps + a.consumed, steps) for a in advances], 1)


def _inputs(batch: Batch) -> Tensor:
    """The packed inputs: pending tokens of the decodes, then the next inputs of the others."""
    parts: list[NDArray[np.int64] | NDArray[np.float32]] = [
        stream.inputs[stream.done : stream.done + count] for stream, count in batch.inputs
    ]
    if batch.decodes:
        parts.insert(0, np.array([stream.pending for stream in batch.decodes], np.int64))
    return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts))


def _sequences(
    advances: Sequence[Advance], source: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """Lengths, source and target rows of the sequences of a step; a pair has two of them."""
    lengths: list[int] = []
    sources: list[int] = []
    targets: list[int] = []
    for advance, row in zip(advances, source, strict=True):
        parts = advance.stream.parts if advance.stream.job.kind is Kind.COMPARE else ()
        for other in parts[:-1]:
            lengths.append(other)
            sources.append(-1)
            targets.append(-1)
        lengths.append(parts[-1] if parts else advance.consumed)
        sources.append(row)
        targets.append(advance.row)
    return lengths, sources, targets


def _wanted(
    decodes: Sequence[Advance], inputs: Sequence[Advance]
) -> tuple[NDArray[np.int64], list[tuple[Advance, int]], list[Read]]:
    """The rows whose outputs are needed, who samples from which of them, and who reads which."""
    parts = [np.arange(len(decodes), dtype=np.int64)]
    sampled = [(advance, i) for i, advance in enumerate(decodes)]
    reads: list[Read] = []
    end = rows = len(decodes)
    for advance in inputs:
        stream, kind = advance.stream, advance.stream.job.kind
        begin, end = end, end + advance.consumed
        if kind in (Kind.CLASSIFY, Kind.GENERATE):
            if advance.consumed < stream.remaining:
                continue
            begin = end - 1
        if kind is not Kind.GENERATE:
            reads.append((advance, slice(rows, rows + end - begin)))
        elif stream.samples:
            sampled.append((advance, rows))
        else:
            continue
        parts.append(np.arange(begin, end, dtype=np.int64))
        rows += end - begin
    return np.concatenate(parts), sampled, reads
