"""The tasks with a result for each input, as coroutines: many inputs go in bounded pieces."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from sruserve.api.inputs import MAX_SIZE, Inputs
from sruserve.api.local_model import LocalModel, make_request
from sruserve.api.options import InputOptions
from sruserve.api.results import (
    Answers,
    Classification,
    Encoding,
    Regression,
    Score,
    StreamResult,
    Tagging,
    Translation,
)
from sruserve.server.errors import InvalidRequest, WrongTask
from sruserve.server.offload import offload
from sruserve.server.repository.served import Served
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.embed import vector_width
from sruserve.server.tasks.per_input import PerInputTask, Results
from sruserve.server.tasks.requests import (
    AnswerRequest,
    ChunkRequest,
    ClassifyRequest,
    EmbedRequest,
    EncodeRequest,
    ModelRequest,
    RegressRequest,
    ScoreRequest,
    TagRequest,
)
from sruserve.server.tasks.table import TABLE, AnyTask
from sruserve.server.tasks.translate_request import TranslateRequest

R = TypeVar("R")
Body = TypeVar("Body", bound=ModelRequest)


class ClassifyOptions(InputOptions, total=False):
    """Options of `classify`.

    raw_scores: return the network's own scores, before softmax or sigmoid.
    """

    raw_scores: bool


class RegressOptions(InputOptions, total=False):
    """Options of `regress`.

    steps_ahead: feed the predictions back as the next steps, this number of times.
    """

    steps_ahead: int


class TranslateOptions(TypedDict, total=False):
    """Options of `translate`.

    beam_size: hypotheses that each step of the search keeps, 4 by default; 1 is greedy.
    length_penalty: translations of n tokens are ranked by their log-probability divided by
        ((5 + n) / 6) to this power; 0.6 by default.
    max_tokens: of a translation, with its end; by default 50 more than those of its text.
    n_best: translations of each text, 1 by default.
    attention: return how much each token attends to those of the text.
    wait_k: translate greedily while the text arrives: token t is written once wait_k + t - 1 tokens
        of the text are read, or all of them.
    more: more of the text follows; the result has what can be written now, and the state.
    state: of the chunk before, or a list with one for each text (None: a new one).
    priority, timeout_ms: as for other inputs.
    """

    beam_size: int
    length_penalty: float
    max_tokens: int
    n_best: int
    attention: bool
    wait_k: int
    more: bool
    state: str | Sequence[str | None] | None
    priority: int
    timeout_ms: int | None


_AT_ONCE = 4  # pieces of a call: the engine has work while the results of another are made
_MAX_NUMBERS = 4 << 20  # of a piece whose result has numbers for each step

METHODS = {
    "classify": "classify",
    "pair": "classify",
    "tag": "tag",
    "regress": "regress",
    "answer": "answer",
    "encode": "encode",
    "generate": "generate or model.score",
    "translate": "translate",
}
"""The method for each task of a model."""

_TASKS: dict[type[ModelRequest], type[AnyTask]] = {task.schema: task for task in TABLE}
_RESULTS: dict[type[ModelRequest], Callable[[Any], Any]] = {
    ClassifyRequest: Classification.of,
    TagRequest: Tagging.of,
    RegressRequest: Regression.of,
    AnswerRequest: Answers.of,
    ScoreRequest: Score.of,
    TranslateRequest: Translation.of,
}


async def run(
    local: LocalModel,
    schema: type[ModelRequest],
    inputs: Any,
    *,
    pair: Any = None,
    state: Any = None,
    **fields: Any,
) -> Any:
    """The result of one input, or the list of the results of several, in their order."""
    check_task(local.served, schema)
    whole = Inputs(inputs, pair, state)
    per_step = local.with_states.model.config.rnn.output_size if schema is EncodeRequest else 1
    pieces = whole.pieces(max(1, min(MAX_SIZE, _MAX_NUMBERS // per_step)))
    parts = await in_order(
        pieces, lambda piece: results_of(local, request_of(schema, {**piece, **fields}))
    )
    answers = [result for part in parts for result in part]
    return answers[0] if whole.single else answers


async def embed(local: LocalModel, inputs: Any) -> NDArray[np.float32]:
    """The vector of one input, (width), or those of several, (inputs, width)."""
    vectors = await run(local, EmbedRequest, inputs)
    if isinstance(vectors, list) and not vectors:
        return np.zeros((0, vector_width(local.with_states)), np.float32)
    return np.asarray(vectors, np.float32)


async def results_of(
    local: LocalModel, request: ModelRequest, served: ServedModel | None = None
) -> list[Any]:
    """The results of one request, as values of the API."""
    async with local.results(request, served) as (task, results):
        make = _ARRAYS.get(type(request), _described)
        arguments = task, served or local.served, results, _RESULTS.get(type(request))
        return await offload(results.large, make, *arguments)


def request_of(schema: type[Body], fields: dict[str, Any]) -> Body:
    """A valid request. Features are arrays, which would be slow to validate as lists."""
    if fields.get("stream"):
        raise InvalidRequest("a call returns whole results: leave 'stream' out", param="stream")
    features = None if schema is AnswerRequest else fields.pop("features", None)
    if features is not None and "features" not in schema.model_fields:
        raise InvalidRequest("this task reads no features: give texts or token ids", param="input")
    request = make_request(schema, **fields)
    if features is not None:
        request.features = features  # type: ignore[attr-defined]
    return request


def schema_of(served: Served) -> type[ChunkRequest]:
    """The request that reads the chunks of a stream."""
    for schema, task in _TASKS.items():
        if task.streams and served.task in task.names() and issubclass(schema, ChunkRequest):
            return schema
    raise AssertionError(f"no task reads the chunks of a stream of {served.name}")


def is_single(inputs: Any) -> bool:
    """Whether a call has one input, so that it returns one result."""
    return Inputs(inputs).single


def check_task(served: Served, schema: type[ModelRequest]) -> None:
    """Raise `WrongTask`, with the method to call, unless the model has the task of a request."""
    if served.task not in _TASKS[schema].names():
        raise WrongTask(
            f"{served.name} is a model for '{served.task}': call model.{METHODS[served.task]}",
            param="model",
        )


def _described(
    task: PerInputTask, served: Served, results: Results, make: Callable[[Any], R]
) -> list[R]:
    return [make(task.describe(served, item, result)) for item, result in results.results]


def _encoded(
    task: PerInputTask, served: ServedModel, results: Results, _: object
) -> list[StreamResult]:
    """Encodings with the engine's own arrays, instead of lists."""
    del task
    return [
        Encoding(np.asarray(result.outputs), served.seal_state(result.state))
        for _, result in results.results
    ]


def _vectors(_: object, served: ServedModel, results: Results, __: object) -> list[Any]:
    del served
    return [result.vector for _, result in results.results]


_ARRAYS: dict[type[ModelRequest], Callable[..., list[Any]]] = {
    EncodeRequest: _encoded,
    EmbedRequest: _vectors,
}


async def in_order(
    pieces: Iterator[dict[str, Any]], answer: Callable[[dict[str, Any]], Awaitable[R]]
) -> list[R]:
    """The answers to pieces, a few at a time; the first error ends them all."""
    parts: dict[int, R] = {}
    numbered = enumerate(pieces)

    async def work() -> None:
        for number, piece in numbered:  # shared: each piece is taken once
            parts[number] = await answer(piece)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(work())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [parts[number] for number in range(len(parts))]
