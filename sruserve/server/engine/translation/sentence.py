"""One sentence of a request while it waits and while it is translated."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sruserve.model.translation.translator import Translator
from sruserve.server.engine.job import Job, Translated
from sruserve.server.engine.translation.beam_memory import Slots
from sruserve.server.engine.translation.needs import Needs
from sruserve.server.engine.translation.search import Search


class Sentence:
    """A source, and the search for its translation once it has begun.

    index: of the job's item. slots: the cache rows that its hypotheses may fill.
    steps: of all hypotheses so far. last_flush: of a streamed translation, on `time.monotonic()`.
    """

    slots: Slots

    def __init__(self, job: Job, index: int, translator: Translator, end_id: int) -> None:
        assert job.search is not None
        self.job, self.index = job, index
        self.beam_size, self.wants_attention = job.search.beam_size, job.search.attention
        self.source = job.items[index].inputs
        self.needs = Needs.of(translator, job.search, len(self.source))
        self.search = Search(job.search, end_id, self.needs.max_tokens)
        self.steps, self.last_flush = 0, 0.0
        self._streamed = 0  # tokens that were sent

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

    def result(self) -> Translated:
        """What was found, once the search is over."""
        hypotheses = self.search.results()
        tokens: Sequence[int] = ()
        if self.job.stream:
            tokens = self._unsent(hypotheses[0].tokens[self._streamed :])
        return Translated(hypotheses, tokens, len(self.source) + self.steps)

    def _unsent(self, tokens: NDArray[np.int64]) -> Sequence[int]:
        self._streamed += len(tokens)
        unsent: list[int] = tokens.tolist()
        return unsent
