"""Questions to a reader, in bounded pieces."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

from sruserve.api.calls import check_task, in_order, request_of, results_of
from sruserve.api.local_model import LocalModel
from sruserve.server.errors import InvalidRequest
from sruserve.server.tasks.question_pairs import ROW_BYTES
from sruserve.server.tasks.requests import AnswerRequest

Passage = str | list[list[str]]
"""A text, or its words in a list of one list."""
Passages = list[str] | tuple[str, ...] | list[list[str]]
"""Several texts, or lists of words."""
Features = Mapping[str, Sequence[str]]

MAX_PAIRS = 64  # of a piece


class AnswerOptions(TypedDict, total=False):
    """Options of `answer`.

    preset: name of a document in the model's folder, which the questions are about.
    n_best: most answers to each question, from 1 to 128.
    features: for a model that needs them, lists with an entry for each word: `lemmas`, `pos` and
        `ner` of the context, `question_lemmas`; or a list with those of each question.
    priority, timeout_ms: as for inputs.
    """

    preset: str
    n_best: int
    features: Features | Sequence[Features]
    priority: int
    timeout_ms: int | None


async def answer(
    local: LocalModel, question: Any, context: Any, max_pairs: int = MAX_PAIRS, /, **options: Any
) -> Any:
    """The answers to one question, or a list of those to several, in their order.

    max_pairs: of a piece. options: those of `AnswerOptions`.
    """
    check_task(local.served, AnswerRequest)
    single = isinstance(question, str)
    questions = [question] if single else list(question)
    contexts = [context] if isinstance(context, str) else None if context is None else list(context)
    features = options.pop("features", None)
    by_question = None if features is None or isinstance(features, Mapping) else list(features)
    for name, values in (("context", contexts), ("features", by_question)):
        if values is not None and len(values) not in (1, len(questions)):
            raise InvalidRequest(
                f"'{name}' has {len(values)} entries for {len(questions)} questions; give one, or "
                "one for each",
                param=name,
            )

    def pieces() -> Iterator[dict[str, Any]]:
        size = _piece_size(local, max_pairs)
        for first in range(0, len(questions), size):
            part = slice(first, first + size)
            fields: dict[str, Any] = {"question": questions[part]}
            if contexts is not None:
                fields["context"] = _of(contexts, part)
            if features is not None:
                fields["features"] = features if by_question is None else _of(by_question, part)
            yield fields

    parts = await in_order(
        pieces(), lambda piece: results_of(local, request_of(AnswerRequest, {**piece, **options}))
    )
    answers = [result for part in parts for result in part]
    return answers[0] if single else answers


def _of(values: list[Any], part: slice) -> list[Any]:
    """The values of some questions; one value is that of all."""
    return values[part] if len(values) > 1 else values


def _piece_size(local: LocalModel, max_pairs: int) -> int:
    """The most pairs of a request, whatever their length."""
    longest = ROW_BYTES * local.settings.max_batch_tokens
    return max(1, min(max_pairs, local.limits.inputs, local.limits.body_bytes // longest))
