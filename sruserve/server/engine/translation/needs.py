"""The memory that the search for one sentence may need, before it begins."""

from dataclasses import dataclass
from typing import Self

from sruserve.model.translation.translator import Translator
from sruserve.server.engine.decoding_parameters import BeamSearch
from sruserve.server.engine.translation.source import SourceInput

_NUMBER_BYTES = 4
_OF_TOKEN = 3  # numbers for the id of a hypothesis's token, and for the place of its parent


@dataclass(frozen=True, slots=True)
class Needs:
    """What one sentence takes while it is translated.

    max_tokens: that it may write, with the end token.
    slots: places in the cache: one for each hypothesis and step.
    nbytes: of all of its memory.
    """

    max_tokens: int
    slots: int
    nbytes: int

    @classmethod
    def of(cls, translator: Translator, search: BeamSearch, source: SourceInput) -> Self:
        """The needs of a source."""
        max_tokens = source.writable(translator, search)
        slots = search.beam_size * max_tokens
        numbers = source.length * translator.memory_width
        if source.before is not None:
            numbers += source.before.rows.size + 2 * translator.encoder_width
        numbers += slots * (translator.cache_width + _OF_TOKEN)
        numbers += 2 * search.beam_size * translator.state_width
        if search.attention:
            numbers += (slots + search.n_best * max_tokens) * source.length
        return cls(max_tokens, slots if translator.cache_width else 0, _NUMBER_BYTES * numbers)
