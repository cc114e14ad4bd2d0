"""Compute one step: read the streams' rows, write fresh ones, sample. Nothing is settled here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.kernels.devices import Pace, send
from sruserve.model.folder import Model
from sruserve.server.engine.batch import Batch
from sruserve.server.engine.decoding import Decoding
from sruserve.server.engine.jobs import Kind, Logprobs
from sruserve.server.engine.pool import StatePool, indices
from sruserve.server.engine.sampling import Sampler
from sruserve.server.engine.streams import Stream

_LOGITS = 1 << 22  # numbers in one block of scores: 16 MiB


@dataclass(slots=True)
class Advance:
    """What a step did for one stream; not true of the stream until it is settled.

    row: the fresh state row. consumed: inputs taken, or 1 in a decode.
    """

    stream: Stream
    row: int
    consumed: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    answer: NDArray[np.float32] | None = None
    scores: list[NDArray[np.float32]] = field(default_factory=list)


class Stepper:
    """Runs batches on a model over the rows of a pool."""

    def __init__(self, model: Model, pool: StatePool) -> None:
        self._model, self._network, self._pool = model, model.network, pool
        self._decoding: Decoding | None = None
        self._pace = Pace(self._network.device)

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
            if not any(a.stream.job.sampling.logprobs is not None for a in advances):
                steps = 1 if interrupted() else min(burst, self._decoding.most_steps)
                self._decode(self._decoding, advances, source, steps)
                return
            burst = 1  # scores come to the host after every step
        counts = [advance.consumed for advance in advances]
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        target = torch.tensor([advance.row for advance in advances])
        ragged = RaggedBatch(
            torch.from_numpy(offsets), self._pool.rows, torch.tensor(source), target
        )
        wanted, sampled, answered, scored = _wanted(batch, advances, offsets)
        hidden = self._network.hidden(_inputs(batch), ragged, torch.from_numpy(wanted))
        if answered:
            probabilities = _evenly(self._network.logits(hidden)).softmax(1).cpu().numpy()
            for advance, row in answered:
                advance.answer = probabilities[row, : self._network.config.outputs]
        for advance, row in scored:
            self._score(advance, hidden[row : row + advance.consumed])
        if not (answered or scored or sampled):
            self._pace.step()
        if not sampled:
            return
        if len(sampled) < len(hidden):
            hidden = hidden.index_select(0, indices([row for _, row in sampled], hidden.device))
        chosen = [advance for advance, _ in sampled]
        if batch.inputs:
            self._sample(chosen, hidden, 1, lambda _: None)
            return
        ragged = RaggedBatch(ragged.offsets, ragged.states, target, target)  # goes on in place

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
        sampler = self._sampler(advances, burst)
        told = [i for i, s in enumerate(sampling) if s.logprobs is not None]
        columns = []
        for step in range(burst):
            logits = self._network.logits(hidden)
            tokens = sampler(logits, step)
            columns.append(tokens)
            for i in told:
                logprobs = self._logprobs(logits[i], int(tokens[i]), sampling[i].logprobs or 0)
                advances[i].logprobs.append(logprobs)
            following = advance_all(tokens) if step + 1 < burst else None
            if following is None:
                break
            hidden = following
        for advance, row in zip(advances, torch.stack(columns, 1).tolist(), strict=True):
            advance.tokens = row

    def _sampler(self, advances: list[Advance], burst: int) -> Callable[[Tensor, int], Tensor]:
        """What picks tokens, (streams) int64, from scores at a step of the burst."""
        streams, uniforms = [a.stream for a in advances], _uniforms(advances, burst)
        decoding = self._decoding
        if decoding is not None:  # the kernel of the bursts, so that company changes no token
            return lambda logits, step: decoding.pick(streams, logits, uniforms[step : step + 1])
        return Sampler(
            [stream.job.sampling for stream in streams],
            [stream.window for stream in streams],
            uniforms,
            self._network.device,
        )

    def _source(self, advance: Advance) -> int:
        """The row that a stream starts from; on the CPU, a request's state is put in place here."""
        stream = advance.stream
        if stream.row >= 0 or not isinstance(stream.start, np.ndarray):
            return stream.source
        self._pool.rows[advance.row] = torch.from_numpy(stream.start)
        return advance.row

    def _score(self, advance: Advance, hidden: Tensor) -> None:
        """Take down the log-probabilities of the tokens that follow the rows of `hidden`."""
        stream = advance.stream
        following = stream.known[stream.done + 1 : stream.done + 1 + advance.consumed]
        targets = send(torch.from_numpy(following), hidden.device).unsqueeze(1)
        size = max(1, _LOGITS // (self._network.config.outputs or 1))
        for start in range(0, len(hidden), size):
            scores = _evenly(self._network.logits(hidden[start : start + size])).log_softmax(1)
            picked = scores.gather(1, targets[start : start + size])
            advance.scores.append(picked.squeeze(1).cpu().numpy())

    def _logprobs(self, logits: Tensor, token: int, top: int) -> Logprobs:
        scores = _evenly(logits).log_softmax(0)[: len(logits)]
        values, ids = scores.topk(min(top, len(scores)))
        most = {self._piece(i): v for i, v in zip(ids.tolist(), values.tolist(), strict=True)}
        return Logprobs(self._piece(token), float(scores[token]), most)

    def _piece(self, token: int) -> str:
        """A token as text; one that is no text alone as its bytes, in OpenAI's way."""
        if self._model.codec is None:
            return str(token)
        piece = self._model.codec.pieces[token]
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _evenly(scores: Tensor) -> Tensor:
    """Scores whose rows a GPU all sums in one order, whatever row they are in.

    torch sums a wide row from its first address that is a multiple of 16 bytes.
    """
    spare = -scores.shape[-1] % 4
    return F.pad(scores, (0, spare), value=-torch.inf) if spare and scores.is_cuda else scores


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


_Rows = list[tuple[Advance, int]]


def _wanted(
    batch: Batch, advances: list[Advance], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], _Rows, _Rows, _Rows]:
    """The rows whose outputs are needed, and who samples, answers or scores from which of them."""
    parts = [np.arange(len(batch.decodes), dtype=np.int64)]
    sampled: _Rows = [(advance, i) for i, advance in enumerate(advances[: len(batch.decodes)])]
    answered: _Rows = []
    scored: _Rows = []
    rows = len(batch.decodes)
    for advance, end in zip(
        advances[rows:], offsets[len(batch.decodes) + 1 :].tolist(), strict=True
    ):
        stream, kind = advance.stream, advance.stream.job.kind
        if kind is Kind.SCORE:
            scored.append((advance, rows))
            parts.append(np.arange(end - advance.consumed, end, dtype=np.int64))
        elif advance.consumed == stream.remaining and not (
            kind is Kind.GENERATE and not stream.tokens_left
        ):
            (sampled if kind is Kind.GENERATE else answered).append((advance, rows))
            parts.append(np.array([end - 1], np.int64))
        else:
            continue
        rows += len(parts[-1])
    return np.concatenate(parts), sampled, answered, scored
