"""Compute one step of all hypotheses of all live sentences in one batch."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sruserve.model.translation.config import SideConfig
from sruserve.model.translation.memory import Memory
from sruserve.model.translation.translator import Translator
from sruserve.server.engine.partial_translation import Numbers
from sruserve.server.engine.translation.beam_memory import BeamMemory
from sruserve.server.engine.translation.sentence import Sentence
from sruserve.server.engine.translation.source_reader import read_chunks
from sruserve.server.errors import NotFinite, ServeError, faults

Explain = Callable[[BaseException], ServeError]  # logs an exception


class _Continuations(NamedTuple):
    """The best continuations of hypotheses, and what the model computed of these.

    values, ids: (hypotheses, candidates). state, attention: as in `StepResult`.
    """

    values: NDArray[np.float32]
    ids: NDArray[np.int64]
    state: Tensor
    attention: Tensor | None


class BeamRunner:
    """Encodes sources, and steps hypotheses. Their states are rows in the order of sentences.

    max_scores: scores of the target's vocabulary that are in memory at a time, unless one sentence
        has more.
    """

    def __init__(
        self, translator: Translator, target: SideConfig, memory: BeamMemory, max_scores: int
    ) -> None:
        assert target.bos is not None
        self._max_hypotheses = max(1, max_scores // target.vocab_size)
        self._translator, self._memory, self._bos = translator, memory, target.bos
        # the begin and the padding stand for nothing, so no translation has them
        self._never = [i for i in (target.bos, target.pad) if i not in (None, target.eos)]
        self.clear()

    def clear(self) -> None:
        """Forget all sentences."""
        self._states = torch.zeros(0, self._translator.state_width)
        self._sources = Memory((), self._states)

    def begin(self, sentences: Sequence[Sentence]) -> None:
        """Encode the sources of sentences, which then follow those that live."""
        whole = [sentence for sentence in sentences if sentence.item.before is None]
        chunks = [sentence for sentence in sentences if sentence.item.before is not None]
        encoded = self._translator.encode([torch.from_numpy(each.source) for each in whole])
        memories = {each: encoded[place] for place, each in enumerate(whole)}
        if chunks:
            memories |= zip(chunks, read_chunks(self._translator, chunks), strict=True)
        begun = Memory.join([memories[sentence] for sentence in sentences])
        sources, states = Memory.join([self._sources, begun]), [self._states, begun.states]
        self._states = torch.cat(states)
        self._sources = sources  # last, because a failure changes nothing

    def step(self, live: Sequence[Sentence], explain: Explain) -> dict[Sentence, ServeError]:
        """Take one step of every live sentence. Those that are done then have to leave.

        A batch that fails is tried again in halves, down to the sentences that fail alone.
        Returns those that have failed, or whose numbers are NaN: they have to leave, too.
        """
        starts = np.cumsum([0, *(sentence.search.hypotheses for sentence in live)])
        failed: dict[Sentence, ServeError] = {}
        states, parts = [], self._parts(starts)
        while parts:
            first, end = parts.pop()
            part, continuations = live[first:end], None
            try:
                continuations = self._forward(part, first, starts)
            except faults() as error:
                if len(part) == 1:
                    failed[part[0]] = explain(error)
            if continuations is not None:
                states.append(self._select(part, continuations, failed))
            elif len(part) == 1:
                states.append(self._states[starts[first] : starts[end]])
            else:  # outside the handler: the error holds memory that the next try may need
                middle = (first + end) // 2
                parts += [(middle, end), (first, middle)]
        self._states = torch.cat(states)
        return failed

    def _parts(self, starts: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Neighbouring sentences whose scores are computed together, the first of them last."""
        parts, first = [], 0
        while first < len(starts) - 1:
            limit = starts[first] + self._max_hypotheses
            end = max(first + 1, int(np.searchsorted(starts, limit, "right")) - 1)
            parts.append((first, end))
            first = end
        return parts[::-1]

    def _select(
        self,
        live: Sequence[Sentence],
        continuations: _Continuations,
        failed: dict[Sentence, ServeError],
    ) -> Tensor:
        """Choose the hypotheses of each sentence that continue, and return their states."""
        parents, first = [], 0
        for sentence in live:
            search, count = sentence.search, sentence.search.hypotheses
            at, take = slice(first, first + count), search.candidates
            weights = None
            if continuations.attention is not None and sentence.wants_attention:
                weights = continuations.attention[at, : len(sentence.source)].clone().numpy()
            sentence.steps += count
            slots = sentence.next_slots() if self._translator.cache_width else None
            going = search.advance(
                continuations.values[at, :take], continuations.ids[at, :take], slots, weights
            )
            if np.isnan(continuations.values[at]).any():
                failed[sentence] = NotFinite(
                    "the model computes NaN or infinite numbers for this text, so it has no "
                    "translation: leave the text out"
                )
            parents.append(first + going)
            first += count
        return continuations.state.index_select(0, torch.from_numpy(np.concatenate(parents)))

    def memory(self, live: Sequence[Sentence], place: int) -> tuple[Numbers, Numbers]:
        """The memory of a live sentence's source, and the state of its first hypothesis."""
        first = sum(sentence.search.hypotheses for sentence in live[:place])
        states = self._states[first : first + 1].flatten().clone()
        return self._sources.rows[place].numpy(), states.numpy()

    def keep(self, live: Sequence[Sentence], kept: Sequence[bool]) -> None:
        """Forget the memory and the states of the live sentences that leave."""
        counts = [sentence.search.hypotheses for sentence in live]
        self._states = self._states[torch.from_numpy(np.repeat(kept, counts))]
        rows = tuple(self._sources.rows[i] for i, stays in enumerate(kept) if stays)
        self._sources = Memory(rows, self._sources.states[torch.tensor(kept)])

    def _forward(
        self, live: Sequence[Sentence], first: int, starts: NDArray[np.int64]
    ) -> _Continuations:
        """Compute a step of some neighbouring sentences, the first one of which is `first`.

        starts: the row of the first hypothesis of each live sentence.
        """
        starts = starts[first : first + len(live) + 1]
        rows, sources = slice(starts[0], starts[-1]), slice(first, first + len(live))
        starts = starts - starts[0]
        counts = np.diff(starts)
        lengths = [sentence.search.length for sentence in live]
        seen = [sentence.item.seen(sentence.search.length) for sentence in live]
        longest = max(lengths) if self._translator.cache_width else 0  # else nobody reads it
        ancestry = np.zeros((starts[-1], longest), np.int32)
        ids = np.full(starts[-1], self._bos, np.int64)
        for begin, end, sentence in zip(starts[:-1], starts[1:], live, strict=True):
            if length := sentence.search.length:
                ancestry[begin:end, :length] = sentence.search.slots
                ids[begin:end] = sentence.search.paths.last(sentence.search.hypotheses)
        stepped = self._translator.step(
            torch.from_numpy(ids),
            torch.from_numpy(np.repeat(lengths, counts)),
            torch.from_numpy(np.repeat(np.arange(len(live)), counts)),
            Memory(self._sources.rows[sources], self._sources.states[sources]),
            self._states[rows],
            self._memory.rows,
            torch.from_numpy(ancestry),
            attention=any(sentence.wants_attention for sentence in live),
            seen=torch.from_numpy(np.repeat(seen, counts)),
        )
        stepped.log_probs[:, self._never] = -torch.inf
        if self._translator.cache_width:
            slots = np.concatenate([sentence.next_slots() for sentence in live])
            self._memory.rows[torch.from_numpy(slots)] = stepped.cache
        candidates = max(sentence.search.candidates for sentence in live)
        return _Continuations(
            *best(stepped.log_probs, candidates), stepped.state, stepped.attention
        )


def best(scores: Tensor, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The highest `count` scores of each row and their places; of equal ones, the first ones.

    scores: (rows, outputs), float32.
    """
    count = min(count, scores.shape[1])
    one_more = min(count + 1, scores.shape[1])
    top = scores.topk(one_more, 1)
    values, ids = top.values.numpy(), top.indices.numpy()
    order = np.lexsort((ids, -values))
    values, ids = np.take_along_axis(values, order, 1), np.take_along_axis(ids, order, 1)
    if one_more > count:  # equal scores at the edge: which of them the library takes is not said
        for row in np.flatnonzero(values[:, count - 1] == values[:, count]):
            order = np.argsort(-scores[row].numpy(), kind="stable")[:count]
            values[row, :count], ids[row, :count] = scores[row].numpy()[order], order
    return values[:, :count], ids[:, :count]
