"""Answer: find the answers to questions in a text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

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
from sruserve.server.tasks.limits import text_numbers
from sruserve.server.tasks.per_input import PerInputTask
from sruserve.server.tasks.requests import AnswerRequest, Texts

MAX_QUESTION_WORDS = 512  # each word of a document attends to all of them
_NUMBERS = 8  # of a reply that take as many bytes as an answer's entry
ROW_BYTES = 4 * len(COLUMNS)


@dataclass(frozen=True, slots=True)
class Passage:
    """A text that is split into words.

    text: the text; None: it came as words. words: its words. ids: (words).
    places: (words, 2), the begin and end of each word; None without a text.
    """

    text: str | None
    words: Sequence[str]
    ids: Ids
    places: Ids | None

    def span(self, first: int, last: int) -> dict[str, Any]:
        """The place of words in a reply."""
        if self.text is None or self.places is None:
            return {"text": " ".join(self.words[first : last + 1]), "start": first, "end": last + 1}
        start, end = int(self.places[first, 0]), int(self.places[last, 1])
        return {"text": self.text[start:end], "start": start, "end": end}


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
        longest = max(map(len, item.document.words)) * _reader(served).max_answer_words
        text = item.document.text
        size = longest if text is None else min(text_numbers(text), longest)
        return request.n_best * (_NUMBERS + size)

    def added_bytes(self, item: SequenceInput) -> int:
        return item.inputs.nbytes

    async def items(
        self, caller: Caller, request: AnswerRequest, served: ServedModel, cost: int
    ) -> Sequence[SequenceInput]:
        del cost
        questions = _listed(request.question, "question")
        contexts = _listed(request.context, "context")
        for field, inputs in (("question", questions), ("context", contexts)):
            self._check(served, field, inputs)
        if len(contexts) not in (1, len(questions)):
            raise InvalidRequest(
                f"'context' has {len(contexts)} entries and 'question' has {len(questions)}: send "
                "one context for all questions, or one for each",
                param="context",
            )
        annotations = annotations_of(request.features, len(questions), _reader(served), served.name)
        documents = await self._passages(caller, served, contexts, "context")
        asked = await self._passages(caller, served, questions, "question")
        self._check_words(served, documents, asked)

        def pair() -> Sequence[SequenceInput]:
            return _pairs(_reader(served), documents, asked, annotations)

        words = sum(len(passage.words) for passage in (*documents, *asked))
        size = words * max(1, len(asked) // len(documents))
        return await offload(size > LONG_CHARACTERS, pair, cost=size, caller=caller)

    def _check(self, served: ServedModel, field: str, inputs: Sequence[str | list[str]]) -> None:
        """Raise if a field has no entry, too many, or one that is too long."""
        if not inputs:
            raise EmptyInput(f"'{field}' is an empty list; send at least one text", param=field)
        check_inputs(len(inputs), self.limits, field)
        for content in inputs:
            if not isinstance(content, str):
                served.engine.check_steps(len(content))
            elif 4 * len(content) <= self.limits.input_bytes:  # a character has up to four bytes
                continue
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

        def read_slice(first: int, end: int, tokens: Tokens | None) -> list[Passage]:
            return [_passage(served, content, field, tokens) for content in inputs[first:end]]

        # Only texts have parts; a list of words is read as a whole, as one of ids is.
        contents = cast("Sequence[str | list[int]]", inputs)
        return await self.read_inputs(
            caller, served, contents, [None] * len(inputs), field, read_slice, locate=True
        )

    def _check_words(
        self, served: ServedModel, documents: Sequence[Passage], asked: Sequence[Passage]
    ) -> None:
        """Raise if a question, a pair or all pairs together have too many words."""
        longest = max(len(question.words) for question in asked)
        if longest > MAX_QUESTION_WORDS:
            raise InputTooLong(
                f"a question has {longest} words and may have {MAX_QUESTION_WORDS}; shorten it",
                param="question",
            )
        words = 0
        for i, question in enumerate(asked):
            document = documents[i if len(documents) > 1 else 0]
            size = len(document.words) + len(question.words)
            served.engine.check_steps(size)
            words += size
        if words * ROW_BYTES > self.limits.body_bytes:
            raise InputTooLong(
                f"all pairs of a question and its context have {words} words together and may "
                f"have {self.limits.body_bytes // ROW_BYTES}; send fewer questions, or ask the "
                "operator to raise SRUSERVE_MAX_BODY_BYTES",
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
        words = [content[start:end] for start, end in places.tolist()]
        passage = Passage(content, words, ids, places)
    else:
        passage = Passage(None, content, _looked_up(served, content, field), None)
    if not len(passage.ids):
        raise EmptyInput(f"'{field}' has an entry without words; send some text", param=field)
    return passage


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
