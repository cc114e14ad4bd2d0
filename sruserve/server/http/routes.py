"""Routes: one table serves both dispatch and the OpenAPI document.

Each package with HTTP routes has such a table, `ROUTES`, and a function `mount` that creates the
handlers of its routes.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from inspect import getdoc
from typing import Any, Generic, TypeVar

from sruserve.server.errors import (
    CannotStream,
    ConstraintUnsatisfiable,
    DeadlineExceeded,
    Draining,
    EmptyInput,
    EngineFailure,
    GrammarsNeedLlguidance,
    InputTooLong,
    InternalError,
    InvalidRequest,
    LabelsUndecided,
    MalformedBody,
    ModelNotFound,
    NoProcess,
    NotFinite,
    OutOfDeviceMemory,
    Overloaded,
    PresetNotFound,
    RateLimited,
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
from sruserve.server.http.error_mapping import status_of
from sruserve.server.http.errors import (
    BodyTooLarge,
    ClientCertificateRequired,
    HeadTooLarge,
    OriginNotAllowed,
    RequestTimeout,
    UnsupportedMediaType,
)
from sruserve.server.http.responses.error import ErrorReply

H = TypeVar("H")
Handler = Callable[[HttpCall], Awaitable[None]]
Errors = tuple[type[ServeError], ...]

JSON, TEXT, EVENTS = "application/json", "text/plain", "text/event-stream"

# Errors of any request, in the shape of `/v1`.
ANY_REQUEST: Errors = (
    OriginNotAllowed,
    ClientCertificateRequired,
    BodyTooLarge,
    HeadTooLarge,
    RequestTimeout,
    Overloaded,
    InternalError,
)
# Errors of any route that reads API keys, in its own shape.
ANY_TENANT: Errors = (
    Unauthorized,
    RateLimited,
    Overloaded,
    TooManyAtOnce,
    Draining,
    NoProcess,
    InternalError,
)
# Errors of a JSON body.
BODY: Errors = (
    MalformedBody,
    InvalidRequest,
    InputTooLong,
    NotFinite,
    BodyTooLarge,
    RequestTimeout,
    UnsupportedMediaType,
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
# Errors of a task.
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
# Errors of a tagger's CRF.
LABELS: Errors = (LabelsUndecided,)
# Errors of a completion's grammar.
GRAMMAR: Errors = (ConstraintUnsatisfiable, GrammarsNeedLlguidance)


@dataclass(frozen=True)
class Reply:
    """A reply of a route.

    schema: the type of its JSON, or of the JSON in each event; None: not JSON.
    headers: the descriptions of its headers, by name.
    """

    schema: Any = None
    status: int = 200
    media_type: str = JSON
    description: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ErrorShape:
    """The shape of a protocol's errors.

    schema: of the body. coded: the body has the error's `code`.
    status: gets the class of an error, and returns its HTTP status.
    """

    schema: Any
    coded: bool = False
    status: Callable[[type[ServeError]], int] = status_of


ERROR_SHAPE = ErrorShape(ErrorReply, coded=True)


@dataclass(frozen=True, eq=False)
class Route(Generic[H]):
    """One method of one path.

    path: its parameters are names in braces.
    handler: `mount` creates the handler from it; its docstring is the summary and description.
    name: the prefix of the operation id.
    errors: those of this route, beside `ANY_REQUEST`.
    body: the type of the request's JSON; None: no body.
    body_types: further media types of the body.
    query, headers: the descriptions of query parameters and headers, by name.
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
    def methods(self) -> tuple[str, ...]:
        """The methods that it answers; the server sends no body in reply to HEAD."""
        return ("GET", "HEAD") if self.method == "GET" else (self.method,)

    @property
    def summary(self) -> str:
        """The first line of the handler's docstring."""
        return _paragraphs(self.handler)[0].rstrip(".")

    @property
    def description(self) -> str:
        """The rest of the handler's docstring."""
        return "\n\n".join(_paragraphs(self.handler)[1:])


# The names of the parameters in a path.
path_parameters = re.compile(r"\{(\w+)\}").findall

Mounted = tuple[Route[Any], Handler]


def _paragraphs(handler: object) -> list[str]:
    return [" ".join(part.split()) for part in (getdoc(handler) or "").split("\n\n")]
