"""Answer: find the answers to questions in a text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from sruserve.model.errors import TextError
from sruserve.model.reader.config import COLUMNS, ReaderConfig
from sruserve.model.reader.words import Document
from sruserve.model.text.codec import Words
from sruserve.server.engine.job import Answered, JobKind, SequenceInput
from sruserve.server.errors import EmptyInput, InputTooLong, InvalidRequest, UnfitInput
from sruserve.server.offload import offload
from sruserve.server.repository.encoding import Ids, Tokens, codec_of, locate_input
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.annotations import Annotations, annotations_of
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.inputs import LONG_CHARACTERS, check_inputs
from sruserve.server.tasks.limits import bytes_numbers
from sruserve.server.tasks.per_input import PerInputTask
from sruserve.server.tasks.requests import AnswerRequest, Texts

MAX_QUESTION_WORDS = 512  # each word of a document attends to all of them
_NUMBERS = 8  # of a reply that take as many bytes as an answer's entry
ROW_BYTES = 4 * len(COLUMNS)


@dataclass(frozen=True, slots=True)
class Passage:
    """A text that is split into words.

    text: as it was sent, or its words with spaces between. words: its words. ids: (words).
    places: (words, 2), the begin and end of each word in the text. in_words: it came as words.
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

    def span_numbers(self, max_words: int) -> int:
        """The numbers in a reply that take as many bytes as its longest span, about.

        What is between words counts, too: white space may have any length.
        """
        others = min(max_words, len(self.places)) - 1
        begins, ends = self.places[: len(self.places) - others, 0], self.places[others:, 1]
        characters = int((ends - begins).max())
        return bytes_numbers(characters) if self.text.isascii() else characters


@dataclass(slots=True, kw_only=True)
class Pair(SequenceInput):
    """The rows of a document's words, then of a question's."""

    document: Passage


class AnswerTask(PerInputTask[AnswerRequest]):
    """The spans of a context that answer a question best."""

    name, schema = "answer", AnswerRequest

    def kind(self, request: AnswerRequest, served: ServedModel) -> JobKind:
        del request, served
        return JobKind.ANSWER

    def n_best(self, request: AnswerRequest) -> int:
        return request.n_best

    def numbers(self, request: AnswerRequest, served: ServedModel, item: SequenceInput) -> int:
        assert isinstance(item, Pair)
        document, max_words = item.document, _reader(served).max_answer_words
        answers = min(request.n_best, len(document.words) * max_words)
        return answers * (_NUMBERS + document.span_numbers(max_words))

    def advice(self, served: ServedModel) -> str:
        del served
        return "lower `n_best`, or send fewer questions"

    def added_bytes(self, item: SequenceInput) -> int:
        return item.inputs.nbytes

    async def items(
        self, caller: Caller, request: AnswerRequest, served: ServedModel, cost: int
    ) -> Sequence[SequenceInput]:
        del cost
        questions = _listed(request.question, "question")
        contexts = _listed(request.context, "context")
        for field, inputs in (("question", questions), ("context", contexts)):
            self._check(field, inputs)
        if len(contexts) not in (1, len(questions)):
            raise InvalidRequest(
                f"'context' has {len(contexts)} entries and 'question' has {len(questions)}: send "
                "one context for all questions, or one for each",
                param="context",
            )
        annotations = annotations_of(request.features, len(questions), _reader(served), served.name)
        documents = await self._passages(caller, served, contexts, "context")
        asked = await self._passages(caller, served, questions, "question")
        self._check_pairs(served, documents, asked)

        def pair() -> Sequence[SequenceInput]:
            return _pairs(_reader(served), documents, asked, annotations)

        words = sum(len(passage.words) for passage in (*documents, *asked))
        size = words * max(1, len(asked) // len(documents))
        return await offload(size > LONG_CHARACTERS, pair, cost=size, caller=caller)

    def _check(self, field: str, inputs: Sequence[str | list[str]]) -> None:
        """Raise if a field has no entry, too many, or one that is too long."""
        if not inputs:
            raise EmptyInput(f"'{field}' is an empty list; send at least one text", param=field)
        check_inputs(len(inputs), self.limits, field)
        for content in inputs:
            if isinstance(content, str) and 4 * len(content) <= self.limits.input_bytes:
                continue  # a character has up to four bytes
            texts = [content] if isinstance(content, str) else content
            size = sum(len(text.encode()) for text in texts)
            if size > self.limits.input_bytes:
                raise InputTooLong(
                    f"an entry of '{field}' has {size} bytes and may have "
                    f"{self.limits.input_bytes}; send a part of it, or ask the operator to raise "
                    "SRUSERVE_MAX_INPUT_BYTES",
                    param=field,
                )

    async def _passages(
        self, caller: Caller, served: ServedModel, inputs: Sequence[str | list[str]], field: str
    ) -> list[Passage]:
        """Split texts into words, each text once."""

        words = 0

        def read_slice(first: int, end: int, tokens: Tokens | None) -> list[Passage]:
            nonlocal words
            passages = []
            for content in inputs[first:end]:
                passages.append(_passage(served, content, field, tokens))
                words += len(passages[-1].words)
                self._check_size(words)
            return passages

        # Only texts have parts; a list of words is read as a whole, as one of ids is.
        contents = cast("Sequence[str | list[int]]", inputs)
        return await self.read_inputs(
            caller, served, contents, [None] * len(inputs), field, read_slice, locate=True
        )

    def _check_pairs(
        self, served: ServedModel, documents: Sequence[Passage], asked: Sequence[Passage]
    ) -> None:
        """Raise if a pair or all pairs together have too many words."""
        words = 0
        for i, question in enumerate(asked):
            document = documents[i if len(documents) > 1 else 0]
            size = len(document.words) + len(question.words)
            served.engine.check_steps(size)
            words += size
        self._check_size(words)

    def _check_size(self, words: int) -> None:
        """Raise if the pairs of a request have too many words."""
        if words * ROW_BYTES > self.limits.body_bytes:
            raise InputTooLong(
                f"all pairs of a question and its context have {words} words together or more, "
                f"and may have {self.limits.body_bytes // ROW_BYTES}; send fewer questions, or ask "
                "the operator to raise SRUSERVE_MAX_BODY_BYTES",
                param="question",
            )

    def describe(self, served: ServedModel, item: Pair, result: Answered) -> dict[str, Any]:
        del served
        return {
            "answers": [
                {**item.document.span(first, last), "score": score}
                for first, last, score in result.spans
            ]
        }


def _reader(served: ServedModel) -> ReaderConfig:
    reader = served.model.config.reader
    assert reader is not None
    return reader


def _listed(value: Texts | None, field: str) -> Sequence[str | list[str]]:
    if value is None:
        raise InvalidRequest(f"'{field}' is missing: send a text", param=field)
    return [value] if isinstance(value, str) else value


def _passage(
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


def _pairs(
    reader: ReaderConfig,
    documents: Sequence[Passage],
    asked: Sequence[Passage],
    annotations: Annotations,
) -> list[Pair]:
    """The rows of each question's pair. Consecutive pairs of one document describe it once."""
    pairs, described, document = [], None, documents[0]
    for i, question in enumerate(asked):
        of_words, lemmas = annotations.of(i, documents[i % len(documents)].words, question.words)
        if described is None or len(documents) > 1 or annotations.differ:
            document = documents[i % len(documents)]
            described = Document(reader, document.ids, document.words, of_words)
        rows = described.asked(question.ids, question.words, lemmas)
        pairs.append(Pair(rows, first=len(document.words), document=document))
    return pairs
