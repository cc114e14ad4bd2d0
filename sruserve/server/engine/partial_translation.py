"""A translation by the wait-k policy between two chunks of its source."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sruserve.model.translation.translator import Translator

Numbers = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PartialTranslation:
    """All data that continues a translation: the contents of its state token.

    wait_k: ids of the source that are read before the first token is written.
    max_tokens: as in `BeamSearch`.
    word: the beginning of an unfinished word at the end of the last chunk.
    finish_reason: of a translation that has ended, which remembers its tokens alone; else None.
    log_probability: of all tokens, in nats.
    tokens: (tokens), int64: those that are written.
    rows: (ids, memory_width), float32: what attention reads of the ids so far.
    encoder: (encoder_width), float32: the encoder's state after them.
    decoder: (state_width), float32: the state after the tokens; empty before the first step.
    """

    wait_k: int
    max_tokens: int
    word: str
    finish_reason: str | None
    log_probability: float
    tokens: NDArray[np.int64]
    rows: Numbers
    encoder: Numbers
    decoder: Numbers

    @classmethod
    def begin(cls, translator: Translator, wait_k: int, max_tokens: int) -> Self:
        """A translation whose source has not begun."""
        return cls(
            wait_k,
            max_tokens,
            "",
            None,
            0.0,
            np.zeros(0, np.int64),
            np.zeros((0, translator.memory_width), np.float32),
            np.zeros(translator.encoder_width, np.float32),
            np.zeros(0, np.float32),
        )

    def ended(self, finish_reason: str | None) -> Self:
        """The same translation without what it needs to continue."""
        return replace(
            self,
            word="",
            finish_reason=finish_reason,
            rows=self.rows[:0],
            encoder=np.zeros_like(self.encoder),
            decoder=self.decoder[:0],
        )

    @property
    def is_new(self) -> bool:
        """Whether nothing of the source has arrived."""
        return not (len(self.rows) or self.word or self.finish_reason)
