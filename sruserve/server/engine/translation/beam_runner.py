"""Compute one step of all hypotheses of all live sentences in one batch."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sruserve.model.translation.config import SideConfig
from sruserve.model.translation.memory import Memory
from sruserve.model.translation.translator import StepResult, Translator
from sruserve.server.engine.translation.beam_memory import BeamMemory
from sruserve.server.engine.translation.partial import Numbers
from sruserve.server.engine.translation.sentence import Sentence
from sruserve.server.engine.translation.source_reader import read_chunks


class BeamRunner:
    """Encodes sources, and steps hypotheses. Their states are rows in the order of sentences."""

    def __init__(self, translator: Translator, target: SideConfig, memory: BeamMemory) -> None:
        assert target.bos is not None
        self._translator, self._memory, self._bos = translator, memory, target.bos
        # the begin and the padding stand for nothing, so no translation has them
        self._never = [i for i in (target.bos, target.pad) if i not in (None, target.eos)]
        self._states = torch.zeros(0, translator.state_width)
        self._sources = Memory((), self._states)

    def begin(self, sentences: Sequence[Sentence]) -> None:
        """Encode the sources of sentences, which then come after those that live."""
        whole = [sentence for sentence in sentences if sentence.item.before is None]
        chunks = [sentence for sentence in sentences if sentence.item.before is not None]
        encoded = self._translator.encode([torch.from_numpy(each.source) for each in whole])
        memories = {each: encoded[place] for place, each in enumerate(whole)}
        if chunks:
            memories |= zip(chunks, read_chunks(self._translator, chunks), strict=True)
        begun = Memory.join([memories[sentence] for sentence in sentences])
        self._sources = Memory.join([self._sources, begun])
        self._states = torch.cat([self._states, begun.states])

    def step(self, live: Sequence[Sentence]) -> list[Sentence]:
        """Take one step of every live sentence. Those that are done then have to leave.

        Returns those for which the model has computed NaN, which are done, too.
        """
        counts = [sentence.search.hypotheses for sentence in live]
        starts = np.cumsum([0, *counts])
        stepped = self._forward(live, counts, starts)
        scores = stepped.log_probs
        scores[:, self._never] = -torch.inf
        most = max(sentence.search.candidates for sentence in live)
        values, ids = best(scores, most)
        slots = [sentence.next_slots() for sentence in live]
        if self._translator.cache_width:
            self._memory.rows[torch.from_numpy(np.concatenate(slots))] = stepped.cache
        parents = []
        for index, sentence in enumerate(live):
            search = sentence.search
            at, take = slice(starts[index], starts[index + 1]), search.candidates
            weights = None
            if stepped.attention is not None and sentence.wants_attention:
                weights = stepped.attention[at, : len(sentence.source)].clone().numpy()
            sentence.steps += counts[index]
            going = search.advance(values[at, :take], ids[at, :take], slots[index], weights)
            parents.append(starts[index] + going)
        self._states = stepped.state.index_select(0, torch.from_numpy(np.concatenate(parents)))
        unfit = np.flatnonzero(np.isnan(values).any(1))
        return [live[i] for i in np.unique(np.searchsorted(starts, unfit, "right") - 1)]

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
        self, live: Sequence[Sentence], counts: Sequence[int], starts: NDArray[np.int64]
    ) -> StepResult:
        lengths = [sentence.search.length for sentence in live]
        seen = [sentence.item.seen(sentence.search.length) for sentence in live]
        longest = max(lengths) if self._translator.cache_width else 0  # else nobody reads it
        ancestry = np.zeros((starts[-1], longest), np.int32)
        ids = np.full(starts[-1], self._bos, np.int64)
        for first, end, sentence in zip(starts[:-1], starts[1:], live, strict=True):
            if length := sentence.search.length:
                ancestry[first:end, :length] = sentence.search.slots[:, :longest]
                ids[first:end] = sentence.search.tokens[:, -1]
        return self._translator.step(
            torch.from_numpy(ids),
            torch.from_numpy(np.repeat(lengths, counts)),
            torch.from_numpy(np.repeat(np.arange(len(live)), counts)),
            self._sources,
            self._states,
            self._memory.rows,
            torch.from_numpy(ancestry),
            attention=any(sentence.wants_attention for sentence in live),
            seen=torch.from_numpy(np.repeat(seen, counts)),
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
