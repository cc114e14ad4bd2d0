"""What a route is: dispatch and the OpenAPI document are made of the same tables of them.

Each room that answers over HTTP has such a table, `ROUTES`, and a function `mount` that makes the
handlers of all its routes.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from inspect import getdoc
from typing import Any, Generic, TypeVar

from sruserve.server.errors import (
    BodyTooLarge,
    CannotStream,
    ConstraintUnsatisfiable,
    DeadlineExceeded,
    Draining,
    EmptyInput,
    EngineFailure,
    GrammarsNeedLlguidance,
    HeadTooLarge,
    InputTooLong,
    InternalError,
    InvalidRequest,
    MalformedBody,
    ModelNotFound,
    NoProcess,
    NotFinite,
    OriginNotAllowed,
    OutOfDeviceMemory,
    Overloaded,
    PresetNotFound,
    RateLimited,
    RequestTimeout,
    ServeError,
    StateExpired,
    StateNotFinite,
    StateTampered,
    StateTooLarge,
    StateUnknownKey,
    StateWrongModel,
    StateWrongTenant,
    TooManyAtOnce,
    Unauthorized,
    UnfitInput,
    WrongTask,
)
from sruserve.server.http.call import HttpCall
from sruserve.server.http.responses import ErrorReply

H = TypeVar("H")
Handler = Callable[[HttpCall], Awaitable[None]]
Errors = tuple[type[ServeError], ...]

JSON, TEXT, EVENTS = "application/json", "text/plain", "text/event-stream"

# Any request may be answered with one of these, in the shape of `/v1`.
ANY_REQUEST: Errors = (
    OriginNotAllowed,
    BodyTooLarge,
    HeadTooLarge,
    RequestTimeout,
    Overloaded,
    InternalError,
)
# Any route that reads API keys may answer with one of these, in its own shape.
ANY_TENANT: Errors = (
    Unauthorized,
    RateLimited,
    Overloaded,
    TooManyAtOnce,
    Draining,
    NoProcess,
    InternalError,
)
# What may be wrong with a body of JSON.
BODY: Errors = (
    MalformedBody,
    InvalidRequest,
    InputTooLong,
    NotFinite,
    BodyTooLarge,
    RequestTimeout,
)
STATE: Errors = (
    PresetNotFound,
    CannotStream,
    StateTampered,
    StateUnknownKey,
    StateWrongTenant,
    StateWrongModel,
    StateNotFinite,
    StateTooLarge,
    StateExpired,
)
# What may be wrong with what a model is asked for, and with its answer.
TASK: Errors = (
    *BODY,
    ModelNotFound,
    WrongTask,
    EmptyInput,
    UnfitInput,
    *STATE,
    DeadlineExceeded,
    OutOfDeviceMemory,
    EngineFailure,
)
# What may be wrong with the form that a completion is to have.
GRAMMAR: Errors = (ConstraintUnsatisfiable, GrammarsNeedLlguidance)


@dataclass(frozen=True)
class Reply:
    """What a route may answer with.

    schema: the type of its JSON, or of the JSON in each of its events; None: it is no JSON.
    headers: what each of its headers says, by name.
    """

    schema: Any = None
    status: int = 200
    media_type: str = JSON
    description: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ErrorShape:
    """How a room writes errors.

    schema: of the body. coded: the body has the error's `code`.
    status: the HTTP status of an error, by its class.
    """

    schema: Any
    coded: bool = False
    status: Callable[[type[ServeError]], int] = lambda kind: kind.status


ERROR_SHAPE = ErrorShape(ErrorReply, coded=True)


@dataclass(frozen=True, eq=False)
class Route(Generic[H]):
    """One method of one path.

    path: with a name in braces for each part that a request chooses.
    handler: what its room makes the handler from; the docstring is the summary and description.
    name: what its id in the document begins with.
    errors: those that this route may answer with, beside `ANY_REQUEST`.
    body: the type of the request's JSON; None: there is no body.
    body_types: more media types that the body may have.
    query, headers: what each parameter behind the path, or header, says, by name.
    """

    method: str
    path: str
    handler: H
    name: str
    tag: str
    replies: tuple[Reply, ...]
    errors: Errors = ()
    body: Any = None
    body_is_optional: bool = False
    body_types: tuple[str, ...] = ()
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    error_shape: ErrorShape = ERROR_SHAPE

    @property
    def summary(self) -> str:
        """The first line of the handler's docstring."""
        return _paragraphs(self.handler)[0].rstrip(".")

    @property
    def description(self) -> str:
        """The rest of it."""
        return "\n\n".join(_paragraphs(self.handler)[1:])


# The names in a path that a request gives values.
path_parameters = re.compile(r"\{(\w+)\}").findall

Mounted = tuple[Route[Any], Handler]


def _paragraphs(handler: object) -> list[str]:
    return [" ".join(part.split()) for part in (getdoc(handler) or "").split("\n\n")]
