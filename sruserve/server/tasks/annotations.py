"""The lemmas and tags of words that a reader needs, as a request gives them."""

from collections.abc import Mapping, Sequence

from sruserve.model.reader.config import ReaderConfig
from sruserve.server.errors import InvalidRequest
from sruserve.server.repository.passage_reading import check_lists
from sruserve.server.tasks.requests import WordFeatures

_QUESTION_LEMMAS = "question_lemmas"


class Annotations:
    """What a request says of the words of each pair.

    differ: each question has features of its own.
    preset: the document is a preset, which has its own lists.
    """

    def __init__(
        self,
        features: Sequence[WordFeatures],
        reader: ReaderConfig,
        questions: int,
        name: str,
        preset: bool,
    ) -> None:
        self._features, self._reader = features, reader
        self._of_document = () if preset else reader.needs
        self.differ = len(features) > 1
        lemmas = [_QUESTION_LEMMAS] if "lemmas" in reader.needs else []
        needed = {*self._of_document, *lemmas}
        context = f"{name} with a preset" if preset else name
        if features and len(features) not in (1, questions):
            raise _refused(
                f"'features' has {len(features)} entries for {questions} questions: send one for "
                "each"
            )
        if not features and needed:
            raise _refused(f"{context} needs 'features' with {_named(needed)}")
        for entry in features:
            fields = {field for field in WordFeatures.model_fields if getattr(entry, field)}
            if missing := needed - fields:
                raise _refused(f"{context} needs 'features' with {_named(missing)}, too")
            if unused := fields - needed:
                raise _refused(
                    f"{context} does not use {_named(unused)} of 'features': leave it out"
                )

    def of(
        self, question: int, words: Sequence[str], question_words: Sequence[str]
    ) -> tuple[Mapping[str, Sequence[str]], Sequence[str]]:
        """The lists of a document's words by name, and the lemmas of a question's words.

        Raises `InvalidRequest` unless each list has an entry for each word.
        """
        if not self._features:
            return {}, ()
        entry = self._features[question if self.differ else 0]
        lists = {field: getattr(entry, field) for field in self._of_document}
        check_lists(self._reader, lists, words, "context")
        lemmas = entry.question_lemmas or ()
        if "lemmas" in self._reader.needs:
            check_lists(self._reader, {_QUESTION_LEMMAS: lemmas}, question_words, "question")
        return lists, lemmas


def annotations_of(
    features: WordFeatures | list[WordFeatures] | None,
    questions: int,
    reader: ReaderConfig,
    name: str,
    preset: bool = False,
) -> Annotations:
    """The annotations of a request; raises `InvalidRequest` if the model needs others.

    name: of the model. preset: the document is a preset.
    """
    entries = [] if features is None else features if isinstance(features, list) else [features]
    return Annotations(entries, reader, questions, name, preset)


def _named(fields: set[str]) -> str:
    return " and ".join(f"'{field}'" for field in sorted(fields))


def _refused(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="features")
