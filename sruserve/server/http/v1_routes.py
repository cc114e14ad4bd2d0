"""The routes of the tasks: `POST /v1/…`, one for each task of the table that has a name there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sruserve.server.auth import Tenants
from sruserve.server.http.embeddings import EmbeddingEndpoint
from sruserve.server.http.responses.answer import AnswerReply
from sruserve.server.http.responses.classify import ClassifyReply
from sruserve.server.http.responses.complete import CompletionReply
from sruserve.server.http.responses.embed import EmbeddingReply
from sruserve.server.http.responses.encode import EncodeReply
from sruserve.server.http.responses.error import ErrorReply
from sruserve.server.http.responses.regress import RegressReply
from sruserve.server.http.responses.results import ResultsReply
from sruserve.server.http.responses.score import ScoreReply
from sruserve.server.http.responses.tag import TagReply
from sruserve.server.http.responses.translate import TranslateEvent, TranslateReply
from sruserve.server.http.routes import (
    ANY_TENANT,
    EVENTS,
    GRAMMAR,
    LABELS,
    TASK,
    Errors,
    Reply,
    Route,
)
from sruserve.server.http.translation import TranslateEndpoint
from sruserve.server.http.v1 import CompletionEndpoint, PerInputEndpoint, TaskEndpoint
from sruserve.server.tasks.answer import AnswerTask
from sruserve.server.tasks.classify import ClassifyTask
from sruserve.server.tasks.complete import CompleteTask
from sruserve.server.tasks.embed import EmbedTask
from sruserve.server.tasks.encode import EncodeTask
from sruserve.server.tasks.regress import RegressTask
from sruserve.server.tasks.score import ScoreTask
from sruserve.server.tasks.table import TABLE, AnyTask, Table, Tasks
from sruserve.server.tasks.tag import TagTask
from sruserve.server.tasks.translate import TranslateTask


class Context(NamedTuple):
    """The arguments of the endpoints of `/v1`."""

    tasks: Tasks
    tenants: Tenants
    ping_seconds: float


Create = Callable[[str, Context], TaskEndpoint[Any]]


def embeddings(path: str, context: Context) -> TaskEndpoint[Any]:
    """Embed texts.

    Return one vector for each text in OpenAI's shape: the pooled outputs of a classifier, or the
    last output of an encoder.
    """
    return EmbeddingEndpoint(path, context.tasks[EmbedTask], context.tenants)


def completions(path: str, context: Context) -> TaskEndpoint[Any]:
    """Complete prompts.

    Generate text in OpenAI's shape; with `stream`, send it as server-sent events of that shape.

    When streaming, `state` is in the chunk with `finish_reason`.
    """
    tasks, tenants, ping_seconds = context
    return CompletionEndpoint(path, tasks[CompleteTask], tenants, ping_seconds)


def translate(path: str, context: Context) -> TaskEndpoint[Any]:
    """Translate texts.

    Return the best translations of each text, found by a beam search; with `stream`, send the
    greedy translation while it grows, as server-sent events; with `wait_k`, translate a text that
    comes in chunks.

    When streaming with `more`, the states are in the last event, which has `usage`.
    """
    tasks, tenants, ping_seconds = context
    return TranslateEndpoint(path, tasks[TranslateTask], tenants, ping_seconds)


@dataclass(frozen=True)
class Encoding:
    """How HTTP encodes a task, where that is more than a list of results in JSON.

    reply: the schema of a reply. event: of a server-sent event; None: the task has none.
    errors: beside those of any task. create: makes its endpoint.
    """

    reply: Any
    event: Any = None
    errors: Errors = ()
    create: Create | None = None


ENCODINGS: Mapping[type[AnyTask], Encoding] = {
    ClassifyTask: Encoding(ClassifyReply),
    TagTask: Encoding(TagReply, errors=LABELS),
    RegressTask: Encoding(RegressReply),
    AnswerTask: Encoding(AnswerReply),
    EncodeTask: Encoding(EncodeReply),
    EmbedTask: Encoding(EmbeddingReply, create=embeddings),
    ScoreTask: Encoding(ScoreReply),
    CompleteTask: Encoding(CompletionReply, CompletionReply | ErrorReply, GRAMMAR, completions),
    TranslateTask: Encoding(TranslateReply, TranslateEvent | ErrorReply, create=translate),
}
_PLAIN = Encoding(ResultsReply)
_made: dict[type[AnyTask], Route[Any]] = {}


def encoding_of(task: type[AnyTask]) -> Encoding:
    """How HTTP encodes a task."""
    return ENCODINGS.get(task, _PLAIN)


def route_of(task: type[AnyTask]) -> Route[Any]:
    """The route of a task, always the same object."""
    if task not in _made:
        encoding, name = encoding_of(task), str(task.route)
        replies = [Reply(encoding.reply)]
        if encoding.event is not None:
            replies.append(Reply(encoding.event, media_type=EVENTS))
        _made[task] = Route(
            "POST", f"/v1/{name}", encoding.create or task, name, "inference", tuple(replies),
            (*ANY_TENANT, *TASK, *encoding.errors), task.schema,
        )  # fmt: skip
    return _made[task]


def routes(table: Table = TABLE) -> tuple[Route[Any], ...]:
    """The routes of all tasks of a table."""
    return tuple(route_of(task) for task in table if task.route is not None)


def mount(
    tasks: Tasks, tenants: Tenants, ping_seconds: float
) -> list[tuple[Route[Any], TaskEndpoint[Any]]]:
    """Create the endpoints of all tasks."""
    context = Context(tasks, tenants, ping_seconds)
    mounted: list[tuple[Route[Any], TaskEndpoint[Any]]] = []
    for task in tasks:
        if task.route is not None:
            route, create = route_of(type(task)), encoding_of(type(task)).create
            if create is None:
                mounted.append((route, PerInputEndpoint(route.path, task, tenants)))
            else:
                mounted.append((route, create(route.path, context)))
    return mounted
