"""The routes of the tasks: `POST /v1/…`."""

from collections.abc import Callable
from typing import Any, NamedTuple

from sruserve.server.auth import Tenants
from sruserve.server.http.embeddings import EmbeddingEndpoint
from sruserve.server.http.responses import (
    AnswerReply,
    ClassifyReply,
    CompletionReply,
    EmbeddingReply,
    EncodeReply,
    ErrorReply,
    RegressReply,
    ScoreReply,
    TagReply,
    TranslateEvent,
    TranslateReply,
)
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
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.requests import (
    AnswerRequest,
    ClassifyRequest,
    EmbedRequest,
    EncodeRequest,
    ModelRequest,
    RegressRequest,
    ScoreRequest,
    TagRequest,
)
from sruserve.server.tasks.table import Tasks
from sruserve.server.tasks.translate_request import TranslateRequest


class Context(NamedTuple):
    """The arguments of the endpoints of `/v1`."""

    tasks: Tasks
    tenants: Tenants
    ping_seconds: float


Create = Callable[[str, Context], TaskEndpoint[Any]]


def classify(path: str, context: Context) -> TaskEndpoint[Any]:
    """Classify texts.

    Label texts, features or pairs of texts, or the next chunk of a stream.
    """
    return PerInputEndpoint(path, "cls", context.tasks.classify, context.tenants)


def tag(path: str, context: Context) -> TaskEndpoint[Any]:
    """Label every step.

    Label each token of texts, or each step of ids or features, and merge the labels into spans.

    A span that continues one of the chunk before is `continued`. A model with a CRF returns the
    labels of a stream when no later step can change them; `pending` counts the others.
    """
    return PerInputEndpoint(path, "tag", context.tasks.tag, context.tenants)


def regress(path: str, context: Context) -> TaskEndpoint[Any]:
    """Predict values.

    Predict named values, or quantiles of them, after the last step or after each; with
    `steps_ahead`, also those of the steps to come.
    """
    return PerInputEndpoint(path, "reg", context.tasks.regress, context.tenants)


def answer(path: str, context: Context) -> TaskEndpoint[Any]:
    """Answer questions.

    Find the answers to questions in a text: the spans of its words that score best.
    """
    return PerInputEndpoint(path, "ans", context.tasks.answer, context.tenants)


def encode(path: str, context: Context) -> TaskEndpoint[Any]:
    """Compute outputs.

    Return the outputs of a network without a head for each step.
    """
    return PerInputEndpoint(path, "enc", context.tasks.encode, context.tenants)


def embeddings(path: str, context: Context) -> TaskEndpoint[Any]:
    """Embed texts.

    Return one vector for each text in OpenAI's shape: the pooled outputs of a classifier, or the
    last output of an encoder.
    """
    return EmbeddingEndpoint(path, "emb", context.tasks.embed, context.tenants)


def score(path: str, context: Context) -> TaskEndpoint[Any]:
    """Score texts.

    Return the log-likelihood and bits per character of texts under a language model.
    """
    return PerInputEndpoint(path, "score", context.tasks.score, context.tenants)


def completions(path: str, context: Context) -> TaskEndpoint[Any]:
    """Complete prompts.

    Generate text in OpenAI's shape; with `stream`, send it as server-sent events of that shape.

    When streaming, `state` is in the chunk with `finish_reason`.
    """
    tasks, tenants, ping_seconds = context
    return CompletionEndpoint(path, tasks.complete, tenants, ping_seconds)


def translate(path: str, context: Context) -> TaskEndpoint[Any]:
    """Translate texts.

    Return the best translations of each text, found by a beam search; with `stream`, send the
    greedy translation while it grows, as server-sent events; with `wait_k`, translate a text that
    comes in chunks.

    When streaming with `more`, the states are in the last event, which has `usage`.
    """
    tasks, tenants, ping_seconds = context
    return TranslateEndpoint(path, tasks.translate, tenants, ping_seconds)


def _route(
    handler: Create, body: type[ModelRequest], *replies: Reply, errors: Errors = ()
) -> Route[Create]:
    name = handler.__name__
    return Route(
        "POST", f"/v1/{name}", handler, name, "inference", replies,
        (*ANY_TENANT, *TASK, *errors), body,
    )  # fmt: skip


ROUTES: tuple[Route[Create], ...] = (
    _route(classify, ClassifyRequest, Reply(ClassifyReply)),
    _route(tag, TagRequest, Reply(TagReply), errors=LABELS),
    _route(regress, RegressRequest, Reply(RegressReply)),
    _route(answer, AnswerRequest, Reply(AnswerReply)),
    _route(encode, EncodeRequest, Reply(EncodeReply)),
    _route(embeddings, EmbedRequest, Reply(EmbeddingReply)),
    _route(score, ScoreRequest, Reply(ScoreReply)),
    _route(
        completions,
        CompletionRequest,
        Reply(CompletionReply),
        Reply(CompletionReply | ErrorReply, media_type=EVENTS),
        errors=GRAMMAR,
    ),
    _route(
        translate,
        TranslateRequest,
        Reply(TranslateReply),
        Reply(TranslateEvent | ErrorReply, media_type=EVENTS),
    ),
)


def mount(
    tasks: Tasks, tenants: Tenants, ping_seconds: float
) -> list[tuple[Route[Create], TaskEndpoint[Any]]]:
    """Create the endpoints of all tasks."""
    context = Context(tasks, tenants, ping_seconds)
    return [(route, route.handler(route.path, context)) for route in ROUTES]
