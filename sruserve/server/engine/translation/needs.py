"""The memory that the search for one sentence may need, before it begins."""

from dataclasses import dataclass
from typing import Self

from sruserve.model.translation.translator import Translator
from sruserve.server.engine.job import BeamSearch

_NUMBER_BYTES = 4
_OF_TOKEN = 3  # numbers for the id of a hypothesis's token, and for the place of its parent
DEFAULT_EXTRA_TOKENS = 50  # beyond the source's length, as in Vaswani et al. 2017, section 6.1


@dataclass(frozen=True, slots=True)
class Needs:
    """What one sentence takes while it is translated.

    max_tokens: of its translation, with the end token.
    slots: places in the cache: one for each hypothesis and step.
    nbytes: of all of its memory.
    """

    max_tokens: int
    slots: int
    nbytes: int

    @classmethod
    def of(cls, translator: Translator, search: BeamSearch, source_length: int) -> Self:
        """The needs of a source of so many tokens."""
        max_tokens = search.max_tokens or source_length + DEFAULT_EXTRA_TOKENS
        if translator.max_target is not None:
            max_tokens = min(max_tokens, translator.max_target)
        slots = search.beam_size * max_tokens
        numbers = source_length * translator.memory_width
        numbers += slots * (translator.cache_width + _OF_TOKEN)
        numbers += 2 * search.beam_size * translator.state_width
        if search.attention:
            numbers += (slots + search.n_best * max_tokens) * source_length
        return cls(max_tokens, slots if translator.cache_width else 0, _NUMBER_BYTES * numbers)
