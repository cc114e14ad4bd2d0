"""Read the questions of a request and their contexts, within the limits of the server."""

from collections.abc import Sequence
from typing import cast

from sruserve.server.errors import EmptyInput, InputTooLong, InvalidRequest
from sruserve.server.offload import LONG_CHARACTERS, offload
from sruserve.server.repository.encoding import Tokens
from sruserve.server.repository.passage import DocumentPreset, Passage
from sruserve.server.repository.passage_reading import read_passage, reader_of
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.annotations import annotations_of
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.inputs import check_inputs
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.question_pairs import ROW_BYTES, Pair, pairs_of, share_document
from sruserve.server.tasks.reading import read_inputs
from sruserve.server.tasks.requests import AnswerRequest, Texts


async def read_pairs(
    caller: Caller, request: AnswerRequest, served: ServedModel, limits: InputLimits
) -> list[Pair]:
    """The pair of each question and its document."""
    questions = _listed(request.question, "question")
    _check("question", questions, limits)
    preset = _preset(request, served)
    reader = reader_of(served)
    if preset is None:
        contexts = _listed(request.context, "context", "send a text, or a 'preset'")
        _check("context", contexts, limits)
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
        documents = await _passages(caller, served, limits, contexts, "context")
    else:
        documents = [preset.passage]
    question_passages = await _passages(caller, served, limits, questions, "question")
    _check_pairs(served, limits, documents, question_passages)

    def pair() -> list[Pair]:
        pairs = pairs_of(reader, documents, question_passages, annotations, preset)
        if len(pairs) > 1 and preset is None and len(documents) == 1:
            share_document(served, pairs)
        return pairs

    words = sum(len(passage.words) for passage in (*documents, *question_passages))
    size = words * max(1, len(question_passages) // len(documents))
    return await offload(size > LONG_CHARACTERS, pair, cost=size, caller=caller)


def _preset(request: AnswerRequest, served: ServedModel) -> DocumentPreset | None:
    """The document that a request names; None: it has a context of its own."""
    if request.preset is None:
        return None
    if request.context is not None:
        raise InvalidRequest("send either 'context' or 'preset', not both", param="preset")
    return served.document_preset(request.preset)


def _check(field: str, inputs: Sequence[str | list[str]], limits: InputLimits) -> None:
    """Raise if a field has no entry, too many, or one that is too long."""
    if not inputs:
        raise EmptyInput(f"'{field}' is an empty list; send at least one text", param=field)
    check_inputs(len(inputs), limits, field)
    for content in inputs:
        if isinstance(content, str) and 4 * len(content) <= limits.input_bytes:
            continue  # a character has up to four bytes
        texts = [content] if isinstance(content, str) else content
        size = sum(len(text.encode()) for text in texts)
        if size > limits.input_bytes:
            raise InputTooLong(
                f"an entry of '{field}' has {size} bytes and may have "
                f"{limits.input_bytes}; send a part of it, or ask the operator to raise "
                "SRUSERVE_MAX_INPUT_BYTES",
                param=field,
            )


async def _passages(
    caller: Caller,
    served: ServedModel,
    limits: InputLimits,
    inputs: Sequence[str | list[str]],
    field: str,
) -> list[Passage]:
    """Split texts into words, each text once."""

    words = 0

    def read_slice(first: int, end: int, tokens: Tokens | None) -> list[Passage]:
        nonlocal words
        passages = []
        for content in inputs[first:end]:
            passages.append(read_passage(served, content, field, tokens))
            words += len(passages[-1].words)
            _check_size(words, limits)
        return passages

    # Only texts have parts; a list of words is read as a whole, as one of ids is.
    contents = cast("Sequence[str | list[int]]", inputs)
    return await read_inputs(
        caller,
        served,
        limits,
        contents,
        [None] * len(inputs),
        field,
        read_slice,
        locate=True,
    )


def _check_pairs(
    served: ServedModel,
    limits: InputLimits,
    documents: Sequence[Passage],
    questions: Sequence[Passage],
) -> None:
    """Raise if a pair or all pairs together have too many words."""
    words = 0
    for i, question in enumerate(questions):
        document = documents[i if len(documents) > 1 else 0]
        size = len(document.words) + len(question.words)
        served.engine.check_steps(size)
        words += size
    _check_size(words, limits)


def _check_size(words: int, limits: InputLimits) -> None:
    """Raise if the pairs of a request have too many words."""
    if words * ROW_BYTES > limits.body_bytes:
        raise InputTooLong(
            f"all pairs of a question and its context have {words} words together or more, "
            f"and may have {limits.body_bytes // ROW_BYTES}; send fewer questions, or ask "
            "the operator to raise SRUSERVE_MAX_BODY_BYTES",
            param="question",
        )


def _listed(
    value: Texts | None, field: str, advice: str = "send a text"
) -> Sequence[str | list[str]]:
    if value is None:
        raise InvalidRequest(f"'{field}' is missing: {advice}", param=field)
    return [value] if isinstance(value, str) else value
