"""The errors of requests over HTTP: the status, type, headers and JSON body of each."""

from collections.abc import Mapping

from pydantic_core import to_json

from sruserve.server import errors
from sruserve.server.errors import InvalidRequest, ServeError
from sruserve.server.http import errors as http_errors

# Every class of errors that is raised somewhere, and its status.
_STATUS: Mapping[type[ServeError], int] = {
    errors.InvalidRequest: 422,
    errors.EmptyInput: 422,
    errors.InputTooLong: 422,
    errors.NotFinite: 422,
    errors.WrongTask: 422,
    errors.CannotStream: 422,
    errors.LabelsUndecided: 422,
    errors.UnfitInput: 422,
    errors.ConstraintUnsatisfiable: 422,
    errors.MalformedBody: 400,
    errors.ModelNotFound: 404,
    errors.PresetNotFound: 404,
    errors.ModelControlRefused: 403,
    errors.ModelLoadFailed: 422,
    errors.Unsupported: 501,
    errors.Unauthorized: 401,
    errors.StreamUnknown: 404,
    errors.StreamExpired: 410,
    errors.StreamExists: 409,
    errors.StepReused: 422,
    errors.WrongStep: 409,
    errors.NoCheckpoint: 422,
    errors.StateRefused: 422,
    errors.StateTampered: 422,
    errors.StateUnknownKey: 422,
    errors.StateWrongTenant: 403,
    errors.StateWrongModel: 422,
    errors.StateNotFinite: 422,
    errors.StateTooLarge: 422,
    errors.StateExpired: 410,
    errors.Overloaded: 429,
    errors.TooManyAtOnce: 429,
    errors.RateLimited: 429,
    errors.StateQuotaExceeded: 429,
    errors.Draining: 503,
    errors.OutOfDeviceMemory: 503,
    errors.ModelBusy: 503,
    errors.ModelClosed: 503,
    errors.ForkedProcess: 503,
    errors.NoProcess: 503,
    errors.StoreUnavailable: 503,
    errors.StreamsNeedRedis: 501,
    errors.GrammarsNeedLlguidance: 501,
    errors.DeadlineExceeded: 504,
    errors.EngineFailure: 500,
    errors.InternalError: 500,
    http_errors.BodyTooLarge: 413,
    http_errors.HeadTooLarge: 431,
    http_errors.RequestTimeout: 408,
    http_errors.UnsupportedMediaType: 415,
    http_errors.OriginNotAllowed: 403,
    http_errors.ClientCertificateRequired: 403,
    http_errors.RouteNotFound: 404,
    http_errors.MethodNotAllowed: 405,
    http_errors.UpgradeRequired: 426,
}
_HEADERS: Mapping[type[ServeError], Mapping[str, str]] = {
    errors.Unauthorized: {"www-authenticate": "Bearer"},
    http_errors.UpgradeRequired: {"upgrade": "websocket", "connection": "upgrade"},
}
# OpenAI's names of the kinds of errors that have a status of their own.
_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


def status_of(kind: type[ServeError]) -> int:
    """The status of an error."""
    return _STATUS[kind]


def headers_of(error: ServeError) -> dict[str, str]:
    """The headers of an error's reply, beside those of its body."""
    headers = {}
    if error.retry_after_seconds is not None:
        headers["retry-after"] = str(error.retry_after_seconds)
    if error.retry is not None:
        headers["x-should-retry"] = "true" if error.retry else "false"
    if isinstance(error, http_errors.MethodNotAllowed):
        headers["allow"] = ", ".join(error.allowed)
    return {**headers, **_HEADERS.get(type(error), {})}


def error_fields(error: ServeError) -> dict[str, str | int | None]:
    """The fields of an error in JSON, as OpenAI names them."""
    return {
        "message": error.message,
        "type": _type_of(type(error)),
        "param": error.param,
        "code": error.code,
        **error.details,
    }


def error_body(error: ServeError) -> bytes:
    """The JSON body of an error's reply."""
    return to_json({"error": error_fields(error)})


def _type_of(kind: type[ServeError]) -> str:
    usual = "invalid_request_error" if issubclass(kind, InvalidRequest) else "server_error"
    return _TYPES.get(_STATUS[kind], usual)
