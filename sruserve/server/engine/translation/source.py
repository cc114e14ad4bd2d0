"""The source of a translation: whole, or the next chunk of one that is still coming."""

from dataclasses import dataclass

from sruserve.model.translation.translator import Translator
from sruserve.server.engine.decoding_parameters import BeamSearch
from sruserve.server.engine.partial_translation import PartialTranslation
from sruserve.server.engine.sequence_input import SequenceInput

_NEVER = 1 << 62  # tokens
_EXTRA_TOKENS = 50  # beyond the source's length, as in Vaswani et al. 2017, section 6.1


@dataclass(slots=True)
class SourceInput(SequenceInput):
    """A source, or a chunk of one, which is translated greedily by the wait-k policy.

    Token t is written once g(t) = min(k + t - 1, |x|) ids are read, and attends to these alone (Ma
    et al. 2019, section 3.2). The decoder begins in the encoder's state after g(1) ids.

    before: the translation before this chunk; None: the source is whole, and read before the search
        for its translation begins.
    """

    before: PartialTranslation | None = None

    @property
    def length(self) -> int:
        """Number of ids that have arrived, with those of earlier chunks."""
        return len(self.inputs) + (0 if self.before is None else len(self.before.rows))

    def seen(self, tokens: int) -> int:
        """The ids that the step after so many tokens attends to."""
        if self.before is None:
            return self.length
        return min(self.before.wait_k + tokens, self.length)

    @property
    def pause(self) -> int:
        """The tokens after which the translation waits for more ids."""
        if self.before is None or not self.more:
            return _NEVER
        return max(0, self.length - self.before.wait_k + 1)

    def limit(self, translator: Translator, search: BeamSearch) -> int:
        """The most tokens of the whole translation, as far as its source has arrived."""
        max_tokens = search.max_tokens if self.before is None else self.before.max_tokens
        limit = max_tokens or self.length + _EXTRA_TOKENS
        positions = translator.max_target
        return limit if positions is None else min(limit, positions)

    def writable(self, translator: Translator, search: BeamSearch) -> int:
        """The most tokens that can be written now."""
        before, max_tokens = self.before, min(self.limit(translator, search), self.pause)
        if before is None:
            return max_tokens
        return 0 if before.finish_reason is not None else max(0, max_tokens - len(before.tokens))
