"""Answer: find the answers to questions in a text."""

from collections.abc import Sequence
from typing import Any

from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Answered
from sruserve.server.repository.passage import Passage
from sruserve.server.repository.passage_reading import reader_of
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.limits import bytes_numbers
from sruserve.server.tasks.per_input import Results, compute
from sruserve.server.tasks.question_pairs import Pair
from sruserve.server.tasks.question_reading import read_pairs
from sruserve.server.tasks.requests import AnswerRequest
from sruserve.server.tasks.task import Task

_ADVICE = "lower `n_best`, or send fewer questions"
_NUMBERS = 8  # of a reply that take as many bytes as an answer's entry


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
        pairs = await read_pairs(caller, request, served, self.limits)
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

    def describe(self, served: ServedModel, item: Pair, result: Answered) -> dict[str, Any]:
        del served
        return {
            "answers": [
                {**item.document.span(first, last), "score": score}
                for first, last, score in result.spans
            ]
        }


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
