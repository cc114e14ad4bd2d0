"""The lemmas and tags of words that a reader needs, as a request gives them."""

from collections.abc import Mapping, Sequence

from sruserve.model.reader.config import ReaderConfig
from sruserve.server.errors import InvalidRequest
from sruserve.server.tasks.requests import WordFeatures

_QUESTION_LEMMAS = "question_lemmas"


class Annotations:
    """What a request says of the words of each pair.

    differ: each question has features of its own.
    """

    def __init__(
        self, features: Sequence[WordFeatures], reader: ReaderConfig, questions: int, name: str
    ) -> None:
        self._features, self._reader = features, reader
        self.differ = len(features) > 1
        needed = {*reader.needs, *([_QUESTION_LEMMAS] if "lemmas" in reader.needs else [])}
        if features and len(features) not in (1, questions):
            raise _refused(
                f"'features' has {len(features)} entries for {questions} questions: send one for "
                "each"
            )
        if not features and needed:
            raise _refused(f"{name} needs 'features' with {_named(needed)}")
        for entry in features:
            given = {field for field in WordFeatures.model_fields if getattr(entry, field)}
            if missing := needed - given:
                raise _refused(f"{name} needs 'features' with {_named(missing)}, too")
            if unused := given - needed:
                raise _refused(f"{name} does not use {_named(unused)} of 'features': leave it out")

    def of(
        self, question: int, words: Sequence[str], question_words: Sequence[str]
    ) -> tuple[Mapping[str, Sequence[str]], Sequence[str]]:
        """The lists of a document's words by name, and the lemmas of a question's words.

        Raises `InvalidRequest` unless each list has an entry for each word.
        """
        if not self._features:
            return {}, ()
        entry = self._features[question if self.differ else 0]
        lists = {field: getattr(entry, field) for field in self._reader.needs}
        for field, values in lists.items():
            _check_length(field, values, words, "context")
            if field in self._reader.tables:
                self._check_tags(field, values)
        lemmas = entry.question_lemmas or ()
        if "lemmas" in lists:
            _check_length(_QUESTION_LEMMAS, lemmas, question_words, "question")
        return lists, lemmas

    def _check_tags(self, field: str, tags: Sequence[str]) -> None:
        """Raise `InvalidRequest` for a tag that has no embedding."""
        known = self._reader.labels(field)
        if unknown := set(tags).difference(known):
            raise _refused(
                f"'{field}' of 'features' has the tag {min(unknown)[:40]!r}, which the model does "
                f"not know; it knows {', '.join(known[:20])}{', …' if len(known) > 20 else ''}"
            )


def annotations_of(
    features: WordFeatures | list[WordFeatures] | None,
    questions: int,
    reader: ReaderConfig,
    name: str,
) -> Annotations:
    """The annotations of a request; raises `InvalidRequest` if the model needs others.

    name: of the model.
    """
    entries = [] if features is None else features if isinstance(features, list) else [features]
    return Annotations(entries, reader, questions, name)


def _check_length(field: str, values: Sequence[str], words: Sequence[str], of: str) -> None:
    if len(values) != len(words):
        raise _refused(
            f"'{field}' of 'features' has {len(values)} entries for the {len(words)} words of the "
            f"{of}: send one for each word; send the words as a list to decide where they begin"
        )


def _named(fields: set[str]) -> str:
    return " and ".join(f"'{field}'" for field in sorted(fields))


def _refused(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="features")
