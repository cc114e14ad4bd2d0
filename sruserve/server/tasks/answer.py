"""Answer: find the answers to questions in a text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from sruserve.model.reader.config import COLUMNS, ReaderConfig
from sruserve.model.reader.encoded import StoredDocument
from sruserve.model.reader.network import Reader
from sruserve.model.reader.words import Document
from sruserve.server.engine.job import Answered, SequenceInput
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.errors import EmptyInput, InputTooLong, InvalidRequest
from sruserve.server.offload import LONG_CHARACTERS, offload
from sruserve.server.repository.encoding import Tokens
from sruserve.server.repository.passage import DocumentPreset, Passage
from sruserve.server.repository.passage_reading import read_passage, reader_of
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.annotations import Annotations, annotations_of
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.inputs import check_inputs
from sruserve.server.tasks.limits import bytes_numbers
from sruserve.server.tasks.per_input import Results, compute
from sruserve.server.tasks.reading import read_inputs
from sruserve.server.tasks.requests import AnswerRequest, Texts
from sruserve.server.tasks.task import Task

_ADVICE = "lower `n_best`, or send fewer questions"
_NUMBERS = 8  # of a reply that take as many bytes as an answer's entry
ROW_BYTES = 4 * len(COLUMNS)


@dataclass(slots=True, kw_only=True)
class Pair(SequenceInput):
    """The rows of a document's words, then of a question's.

    stored: keeps what the network computes of the document alone while the job runs.
    stored_bytes: the memory that this takes, if this pair counts it.
    """

    document: Passage
    stored: StoredDocument | None = None
    stored_bytes: int = 0


class AnswerTask(Task[AnswerRequest, ServedModel]):
    """Answer questions.

    Find the answers to questions in a text: the spans of its words that score best.
    """

    name, schema = "answer", AnswerRequest
    route, prefix = "answer", "ans"

    async def run(
        self, caller: Caller, request: AnswerRequest, served: ServedModel, cost: int
    ) -> Results:
        """Answer the questions of a request. cost: bytes of the request, for the queue."""
        state_output = served.state_output(request)
        pairs = await self._read_pairs(caller, request, served)
        return await compute(
            caller,
            request,
            served,
            self.limits,
            cost + sum(pair.inputs.nbytes + pair.stored_bytes for pair in pairs),
            JobKind.ANSWER,
            pairs,
            state_output=state_output,
            numbers=_reply_numbers(request, served, pairs),
            advice=_ADVICE,
            n_best=request.n_best,
        )

    async def _read_pairs(
        self, caller: Caller, request: AnswerRequest, served: ServedModel
    ) -> list[Pair]:
        """The pair of each question and its document."""
        questions = _listed(request.question, "question")
        self._check("question", questions)
        preset = self._preset(request, served)
        reader = reader_of(served)
        if preset is None:
            contexts = _listed(request.context, "context", "send a text, or a 'preset'")
            self._check("context", contexts)
            if len(contexts) not in (1, len(questions)):
                raise InvalidRequest(
                    f"'context' has {len(contexts)} entries and 'question' has {len(questions)}: "
                    "send one context for all questions, or one for each",
                    param="context",
                )
        annotations = annotations_of(
            request.features, len(questions), reader, served.name, preset is not None
        )
        if preset is None:
            documents = await self._passages(caller, served, contexts, "context")
        else:
            documents = [preset.passage]
        question_passages = await self._passages(caller, served, questions, "question")
        self._check_pairs(served, documents, question_passages)

        def pair() -> list[Pair]:
            pairs = _pairs(reader, documents, question_passages, annotations, preset)
            if len(pairs) > 1 and preset is None and len(documents) == 1:
                _store(served, pairs)
            return pairs

        words = sum(len(passage.words) for passage in (*documents, *question_passages))
        size = words * max(1, len(question_passages) // len(documents))
        return await offload(size > LONG_CHARACTERS, pair, cost=size, caller=caller)

    def _preset(self, request: AnswerRequest, served: ServedModel) -> DocumentPreset | None:
        """The document that a request names; None: it has a context of its own."""
        if request.preset is None:
            return None
        if request.context is not None:
            raise InvalidRequest("send either 'context' or 'preset', not both", param="preset")
        return served.document_preset(request.preset)

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
                passages.append(read_passage(served, content, field, tokens))
                words += len(passages[-1].words)
                self._check_size(words)
            return passages

        # Only texts have parts; a list of words is read as a whole, as one of ids is.
        contents = cast("Sequence[str | list[int]]", inputs)
        return await read_inputs(
            caller,
            served,
            self.limits,
            contents,
            [None] * len(inputs),
            field,
            read_slice,
            locate=True,
        )

    def _check_pairs(
        self, served: ServedModel, documents: Sequence[Passage], questions: Sequence[Passage]
    ) -> None:
        """Raise if a pair or all pairs together have too many words."""
        words = 0
        for i, question in enumerate(questions):
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


def _listed(
    value: Texts | None, field: str, advice: str = "send a text"
) -> Sequence[str | list[str]]:
    if value is None:
        raise InvalidRequest(f"'{field}' is missing: {advice}", param=field)
    return [value] if isinstance(value, str) else value


def _reply_numbers(request: AnswerRequest, served: ServedModel, pairs: Sequence[Pair]) -> int:
    """The approximate most numbers of a reply."""
    numbers, max_words = 0, reader_of(served).max_answer_words
    for pair in pairs:
        answers = min(request.n_best, len(pair.document.words) * max_words)
        numbers += answers * (_NUMBERS + _span_numbers(pair.document, max_words))
    return numbers


def _span_numbers(document: Passage, max_words: int) -> int:
    """The numbers in a reply that take as many bytes as a document's longest span, about.

    What is between words counts, too: white space may have any length.
    """
    others = min(max_words, len(document.places)) - 1
    begins, ends = document.places[: len(document.places) - others, 0], document.places[others:, 1]
    characters = int((ends - begins).max())
    return bytes_numbers(characters) if document.text.isascii() else characters


def _pairs(
    reader: ReaderConfig,
    documents: Sequence[Passage],
    questions: Sequence[Passage],
    annotations: Annotations,
    preset: DocumentPreset | None,
) -> list[Pair]:
    """The rows of each question's pair. Consecutive pairs of one document describe it once."""
    pairs, document = [], documents[0]
    described = None if preset is None else preset.described
    differ = preset is None and (len(documents) > 1 or annotations.differ)
    for i, question in enumerate(questions):
        of_words, lemmas = annotations.of(i, documents[i % len(documents)].words, question.words)
        if described is None or differ:
            document = documents[i % len(documents)]
            described = Document(reader, document.ids, document.words, of_words)
        rows = described.with_question(question.ids, question.words, lemmas)
        pairs.append(Pair(rows, first=len(document.words), document=document))
    return pairs


def _store(served: ServedModel, pairs: Sequence[Pair]) -> None:
    """Have the pairs of one document share its encoder's outputs in all steps of their job."""
    network = served.model.network
    if not isinstance(network, Reader) or reader_of(served).reads_question:
        return  # what such a reader shares is computed in less time than a step takes
    words = len(pairs[0].document.words)
    stored = network.documents.store(torch.from_numpy(pairs[0].inputs[:words]))
    for pair in pairs:
        pair.stored = stored
    pairs[0].stored_bytes = network.documents.stored_bytes(words)
