"""Errors in Triton's form: its status codes, and the texts that its clients recognize."""

from dataclasses import dataclass

from sruserve.server.errors import (
    DeadlineExceeded,
    Draining,
    ModelNotFound,
    Overloaded,
    ServeError,
)
from sruserve.server.http.error_mapping import status_of as status_over_http

_CODES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNSUPPORTED",
    503: "UNAVAILABLE",
}
_TEXTS: dict[type[ServeError], str] = {
    Overloaded: "Exceeds maximum queue size",
    DeadlineExceeded: "Request timeout expired",
    Draining: (
        "Server is stopping, scheduler for model has stopped accepting new inference requests"
    ),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """An error for a client of KServe.

    status: over HTTP.
    code: over gRPC: INTERNAL, NOT_FOUND, UNAVAILABLE, UNSUPPORTED, UNAUTHENTICATED,
        PERMISSION_DENIED, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, or INVALID_ARG for all else.
    """

    status: int
    code: str
    message: str


def explain(error: ServeError) -> Problem:
    """An error in KServe's form: as under `/v1`, except where Triton's clients expect another."""
    status, text = status_of(type(error)), _TEXTS.get(type(error))
    if text is not None:
        return Problem(status, "UNAVAILABLE", text)
    return Problem(status, _CODES.get(status, "INVALID_ARG"), error.message)


def status_of(kind: type[ServeError]) -> int:
    """The HTTP status of an error."""
    if kind in _TEXTS:
        return 503
    status = status_over_http(kind)
    return 400 if status == 422 and kind.retry is None else status


def unknown_model(name: str, version: str = "") -> ModelNotFound:
    """Triton's text for a model or a version that is not served."""
    model = f"'{name[:100]}'" + (f" version {version[:20]}" if version else "")
    return ModelNotFound(f"Request for unknown model: {model} is not found", param="model")
