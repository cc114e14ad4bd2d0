"""Split the texts of a reader into words, and look words up."""

from collections.abc import Mapping, Sequence

import numpy as np

from sruserve.model.errors import TextError
from sruserve.model.reader.config import ReaderConfig
from sruserve.model.text.words import Words
from sruserve.server.errors import EmptyInput, InputTooLong, InvalidRequest, UnfitInput
from sruserve.server.repository.encoding import Ids, Tokens, codec_of, locate_input
from sruserve.server.repository.passage import Passage
from sruserve.server.repository.served_model import ServedModel

MAX_QUESTION_WORDS = 512  # each word of a document attends to all of them


def reader_of(served: ServedModel) -> ReaderConfig:
    """The config of a model of task `answer`."""
    reader = served.model.config.reader
    assert reader is not None
    return reader


def read_passage(
    served: ServedModel, content: str | list[str], field: str, tokens: Tokens | None
) -> Passage:
    """One text or list of words; raises `EmptyInput` if it has no words."""
    if isinstance(content, str):
        ids, places, _ = locate_input(served, content, None, field, False, tokens)
        _check_words(served, len(ids), field)
        words = [content[start:end] for start, end in places.tolist()]
        passage = Passage(content, words, ids, places, False)
    else:
        _check_words(served, len(content), field)
        ids = _looked_up(served, content, field)
        passage = Passage(" ".join(content), content, ids, _places(content), True)
    if not len(passage.ids):
        raise EmptyInput(f"'{field}' has an entry without words; send some text", param=field)
    return passage


def _check_words(served: ServedModel, words: int, field: str) -> None:
    """Raise `InputTooLong` for more words than a question, or any text, may have."""
    if field == "question" and words > MAX_QUESTION_WORDS:
        raise InputTooLong(
            f"a question has {words} words and may have {MAX_QUESTION_WORDS}; shorten it",
            param=field,
        )
    served.engine.check_steps(words)


def _places(words: list[str]) -> Ids:
    """Where each word is in the text of all of them with spaces between, (words, 2)."""
    lengths = np.array([len(word) for word in words], np.int64)
    ends = (lengths + 1).cumsum() - 1
    return np.stack([ends - lengths, ends], 1)


def _looked_up(served: ServedModel, words: list[str], field: str) -> Ids:
    codec = codec_of(served, field)
    if not isinstance(codec, Words):
        raise InvalidRequest(
            f"the vocabulary of {served.name} has no words, so it splits texts itself: send "
            f"'{field}' as a text",
            param=field,
        )
    try:
        return codec.look_up(words)
    except TextError as error:
        raise UnfitInput(str(error), code=error.code, param=field) from error


def check_lists(
    reader: ReaderConfig,
    lists: Mapping[str, Sequence[str]],
    words: Sequence[str],
    of: str,
    field: str | None = "features",
) -> None:
    """Raise `InvalidRequest` unless each list has an entry for each word, and no unknown tag.

    lists: by their names. of: whose words they are. field: of a request, which has the lists; None:
    a file has them beside the words.
    """
    place = f" of '{field}'" if field else ""
    for name, values in lists.items():
        if len(values) != len(words):
            raise InvalidRequest(
                f"'{name}'{place} has {len(values)} entries for the {len(words)} words of the "
                f"{of}: give one for each word; give the words as a list to decide where they "
                "begin",
                param=field,
            )
        known = reader.labels(name) if name in reader.tables else values
        if unknown := set(values).difference(known):
            raise InvalidRequest(
                f"'{name}'{place} has the tag {min(unknown)[:40]!r}, which the model does not "
                f"know; it knows {', '.join(known[:20])}{', …' if len(known) > 20 else ''}",
                param=field,
            )
