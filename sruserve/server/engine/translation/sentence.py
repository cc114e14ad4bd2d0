"""One sentence of a request while it waits and while it is translated."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sruserve.model.translation.translator import Translator
from sruserve.server.engine.job import Job
from sruserve.server.engine.partial_translation import Numbers, PartialTranslation
from sruserve.server.engine.results import Hypothesis, Translated
from sruserve.server.engine.translation.beam_memory import Slots
from sruserve.server.engine.translation.needs import Needs
from sruserve.server.engine.translation.search import Search
from sruserve.server.engine.translation.source import SourceInput


class Sentence:
    """A source, and the search for its translation once it has begun.

    index: of the job's item. slots: the cache rows that its hypotheses may fill.
    encoder: (encoder_width): the encoder's state after a chunk of a source.
    in_reserve: it has begun in the part for tenants that use little (`BeamShares`).
    steps: of all hypotheses so far. last_flush: of a streamed translation, on the engine's clock.
    """

    slots: Slots
    encoder: Tensor
    in_reserve = False

    def __init__(self, job: Job, index: int, translator: Translator, end_id: int) -> None:
        assert job.search is not None
        self.job, self.index = job, index
        self.beam_size, self.wants_attention = job.search.beam_size, job.search.attention
        item = job.items[index]
        assert isinstance(item, SourceInput)
        self.item, self.source = item, item.inputs
        self.needs = Needs.of(translator, job.search, item)
        self.search = Search(job.search, end_id, item.limit(translator, job.search))
        self._pause = item.pause
        if (before := item.before) is not None:
            self.search.resume(before.tokens, before.log_probability, before.finish_reason)
        self.steps, self.last_flush = 0, 0.0
        self._streamed = self.search.length  # tokens that were sent

    @property
    def earlier(self) -> int:
        """The tokens that were written for earlier chunks."""
        return 0 if self.item.before is None else len(self.item.before.tokens)

    @property
    def waits(self) -> bool:
        """Whether it can continue only with more of its source."""
        return not self.search.done and self.search.length >= self._pause

    @property
    def done(self) -> bool:
        """Whether it takes no more steps."""
        return self.search.done or self.waits

    @property
    def cost(self) -> int:
        """Rows of the step that encodes its source."""
        return len(self.source)

    @property
    def work(self) -> int:
        """Tokens that it may take: those of its source, and of all of its hypotheses."""
        return len(self.source) + self.beam_size * self.needs.max_tokens

    def next_slots(self) -> Slots:
        """The cache row of each hypothesis in the next step; none without a cache."""
        first = self.search.length * self.beam_size
        return self.slots[first : first + self.search.hypotheses]

    def chunk(self) -> Translated:
        """The tokens of a greedy search that were not sent before."""
        return Translated((), self._unsent(self.search.paths.first_since(self._streamed)), 0)

    def result(self, memory: tuple[Numbers, Numbers] | None) -> Translated:
        """What was found, once it is done.

        memory: if it waits, the rows of its source and the state of its decoder.
        """
        hypotheses = [self.search.unfinished()] if self.waits else self.search.results()
        best = hypotheses[0]
        tokens = self._unsent(best.tokens[self._streamed :]) if self.job.stream else ()
        partial = self._partial(best, memory) if self.item.more else None
        return Translated(hypotheses, tokens, len(self.source) + self.steps, partial)

    def _partial(
        self, best: Hypothesis, memory: tuple[Numbers, Numbers] | None
    ) -> PartialTranslation:
        """What continues a translation whose source continues."""
        before = self.item.before
        assert before is not None
        written = replace(before, tokens=best.tokens, log_probability=best.log_probability)
        if memory is None:
            return written.ended(best.finish_reason)
        rows, decoder = memory
        begun = self.item.length >= before.wait_k
        encoder = self.encoder.numpy().copy()
        decoder = decoder if begun else decoder[:0]
        return replace(written, word=self.item.word, rows=rows, encoder=encoder, decoder=decoder)

    def _unsent(self, tokens: NDArray[np.int64]) -> Sequence[int]:
        self._streamed += len(tokens)
        unsent: list[int] = tokens.tolist()
        return unsent
