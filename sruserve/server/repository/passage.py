"""Texts in words, which a reader answers questions about; and those that are named presets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sruserve.model.reader.encoded import StoredDocument
from sruserve.model.reader.words import Document

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Passage:
    """A text that is split into words.

    text: as it was sent, or its words with spaces between. words: its words. ids: (words).
    places: (words, 2), the begin and end of each word in the text. in_words: the client sent words.
    """

    text: str
    words: Sequence[str]
    ids: Ids
    places: Ids
    in_words: bool

    def span(self, first: int, last: int) -> dict[str, Any]:
        """The place of words in a reply."""
        start, end = int(self.places[first, 0]), int(self.places[last, 1])
        text = self.text[start:end]
        start, end = (first, last + 1) if self.in_words else (start, end)
        return {"text": text, "start": start, "end": end}


@dataclass(frozen=True, slots=True)
class DocumentPreset:
    """A document that was read when its model was loaded.

    described: its words, for any question. stored: what the network computes of it alone.
    """

    passage: Passage
    described: Document
    stored: StoredDocument
