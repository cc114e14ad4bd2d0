"""The rows of a document's and a question's words: ids, exact matches, frequency and tags."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sruserve.model.reader.config import COLUMNS, FREQUENCY, IN_QUESTION, ReaderConfig

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
"""(words, 7), of the `COLUMNS`."""


class Document:
    """The words of a document, for any number of questions.

    A word matches a question exactly if the question has it: as it is, in lower case, or with the
    same lemma. Its frequency is the share of the document's words that it is, in lower case.

    ids: (words). words: the words themselves, as many. annotations: `lemmas`, and the tags of
    each kind, for each word, as `ReaderConfig.needs` says.
    """

    def __init__(
        self,
        reader: ReaderConfig,
        ids: Ids,
        words: Sequence[str],
        annotations: Mapping[str, Sequence[str]],
    ) -> None:
        lowered = [word.lower() for word in words]
        self._uncased = reader.uncased
        self._forms = [_Distinct(lowered if reader.uncased else words), _Distinct(lowered)]
        if "lemmas" in annotations:
            self._forms.append(_Distinct(annotations["lemmas"]))
        self._rows = np.zeros((len(ids), len(COLUMNS)), np.float32)
        self._rows[:, 0] = ids
        self._rows[:, COLUMNS.index(FREQUENCY)] = self._forms[1].frequencies()
        for tag, tags in annotations.items():
            if tag in COLUMNS:
                number = {label: i for i, label in enumerate(reader.labels(tag))}
                numbers = [number.get(label, len(number)) for label in tags]
                self._rows[:, COLUMNS.index(tag)] = numbers

    def __len__(self) -> int:
        return len(self._rows)

    def with_question(self, ids: Ids, words: Sequence[str], lemmas: Sequence[str]) -> Rows:
        """Return the rows of the document's words, then of a question's, (words, 7).

        ids, words: the question's. lemmas: of its words, if the document has lemmas.
        """
        rows = np.zeros((len(self) + len(ids), len(COLUMNS)), np.float32)
        rows[: len(self)] = self._rows
        rows[len(self) :, 0] = ids
        lowered = [word.lower() for word in words]
        forms = (lowered if self._uncased else words, lowered, lemmas)
        for column, form, own in zip(IN_QUESTION, self._forms, forms, strict=False):
            rows[: len(self), COLUMNS.index(column)] = form.found_in(own)
        return rows


class _Distinct:
    """The words of a document as numbers of its distinct words."""

    def __init__(self, words: Sequence[str]) -> None:
        self._numbers: dict[str, int] = {}
        give = self._numbers.setdefault
        self._of_word = np.array([give(word, len(self._numbers)) for word in words], np.int64)

    def frequencies(self) -> NDArray[np.float64]:
        """Return the share of all words that each one is."""
        return np.bincount(self._of_word)[self._of_word] / len(self._of_word)

    def found_in(self, words: Sequence[str]) -> NDArray[np.bool_]:
        """Return for each word whether it is one of `words`."""
        is_there = np.zeros(len(self._numbers), np.bool_)
        is_there[[self._numbers[word] for word in words if word in self._numbers]] = True
        return is_there[self._of_word]
