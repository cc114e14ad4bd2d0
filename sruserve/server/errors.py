"""The errors of requests, each with its stable code and HTTP status.

ServeError
├── InvalidRequest              422  invalid_request
│   ├── EmptyInput              422  empty_input
│   ├── InputTooLong            422  input_too_long
│   ├── NotFinite               422  not_finite
│   ├── WrongTask               422  wrong_task
│   ├── CannotStream            422  cannot_stream
│   ├── LabelsUndecided         422  labels_undecided
│   ├── UnfitInput              422  the code that the model gave it
│   ├── ConstraintUnsatisfiable 422  constraint_unsatisfiable
│   ├── MalformedBody           400  malformed_body
│   ├── BodyTooLarge            413  body_too_large
│   ├── HeadTooLarge            431  head_too_large
│   ├── RequestTimeout          408  request_timeout
│   ├── UnsupportedMediaType    415  unsupported_media_type
│   ├── OriginNotAllowed        403  origin_not_allowed
│   ├── ClientCertificateRequired 403 client_certificate_required
│   ├── ModelNotFound           404  model_not_found
│   ├── PresetNotFound          404  preset_not_found
│   ├── ModelControlRefused     403  model_control_refused
│   ├── ModelLoadFailed         422  model_load_failed
│   ├── RouteNotFound           404  route_not_found
│   ├── MethodNotAllowed        405  method_not_allowed
│   ├── UpgradeRequired         426  upgrade_required
│   ├── Unsupported             501  unsupported
│   ├── Unauthorized            401  invalid_api_key
│   ├── StreamUnknown           404  stream_unknown
│   ├── StreamExpired           410  stream_expired
│   ├── StreamExists            409  stream_exists
│   ├── StepReused              422  step_reused
│   ├── WrongStep               409  wrong_step
│   ├── NoCheckpoint            422  no_checkpoint
│   └── StateRefused
│       ├── StateTampered       422  state_tampered
│       ├── StateUnknownKey     422  state_unknown_key
│       ├── StateWrongTenant    403  state_wrong_tenant
│       ├── StateWrongModel     422  state_wrong_model
│       ├── StateNotFinite      422  state_not_finite
│       ├── StateTooLarge       422  state_too_large
│       └── StateExpired        410  state_expired
├── Refused
│   ├── Overloaded              429  overloaded
│   │   └── TooManyAtOnce       429  overloaded
│   ├── RateLimited             429  rate_limited
│   ├── StateQuotaExceeded      429  state_quota_exceeded
│   ├── Draining                503  draining
│   ├── OutOfDeviceMemory       503  out_of_memory
│   ├── ModelBusy               503  model_busy
│   ├── ModelClosed             503  model_closed
│   ├── ForkedProcess           503  forked_process
│   ├── NoProcess               503  no_process
│   ├── StoreUnavailable        503  store_unavailable
│   ├── StreamsNeedRedis        501  streams_need_redis
│   ├── GrammarsNeedLlguidance  501  grammars_need_llguidance
│   └── DeadlineExceeded        504  deadline_exceeded
├── EngineFailure               500  engine_failure
└── InternalError               500  internal_error
"""

from collections.abc import Iterable, Mapping
from typing import ClassVar

from pydantic_core import to_json

from sruserve.model.errors import faults as faults  # for callers that catch these errors


class ServeError(Exception):
    """A failure that is reported to the client: what happened and what to change.

    param: the field of the request that caused it, if any.
    retry_after_seconds: the time after which the client may retry.
    retry: whether client libraries should retry; None: they decide by the status.
    details: values for programs beside the code.
    """

    status: ClassVar[int] = 500
    code: str = ""
    type: ClassVar[str] = "server_error"
    outcome: ClassVar[str] = "error"
    retry_after_seconds: int | None = None
    retry: ClassVar[bool | None] = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.details: dict[str, int] = {}

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the reply."""
        headers = {}
        if self.retry_after_seconds is not None:
            headers["retry-after"] = str(self.retry_after_seconds)
        if self.retry is not None:
            headers["x-should-retry"] = "true" if self.retry else "false"
        return headers

    @property
    def fields(self) -> dict[str, str | int | None]:
        """The fields of the error, the same in every protocol."""
        return {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
            **self.details,
        }

    def body(self) -> bytes:
        """The error as JSON."""
        return to_json({"error": self.fields})


class InvalidRequest(ServeError):
    """The request is invalid."""

    status, code, type, outcome = 422, "invalid_request", "invalid_request_error", "invalid"


class EmptyInput(InvalidRequest):
    """The request has neither an input nor a state to continue."""

    code = "empty_input"


class InputTooLong(InvalidRequest):
    """One input, or the number of inputs, is over the operator's limit."""

    code = "input_too_long"


class NotFinite(InvalidRequest):
    """A number in the request is NaN or infinite, or leads to such numbers in the model."""

    code = "not_finite"


class WrongTask(InvalidRequest):
    """The model has another task than the route."""

    code = "wrong_task"


class CannotStream(InvalidRequest):
    """The model cannot continue a state or return one here, such as one that reads whole inputs."""

    code = "cannot_stream"


class LabelsUndecided(InvalidRequest):
    """More labels of a stream than its state may hold depend on steps that are still to come."""

    code = "labels_undecided"


class UnfitInput(InvalidRequest):
    """The model's own text or configuration rules refuse the input; `code` is the model's."""

    def __init__(self, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.code = code


class ConstraintUnsatisfiable(InvalidRequest):
    """No text matches the constraint, or the model's vocabulary cannot spell one."""

    code = "constraint_unsatisfiable"


class MalformedBody(InvalidRequest):
    """The body is not JSON."""

    status, code = 400, "malformed_body"


class BodyTooLarge(InvalidRequest):
    """The body is over the operator's limit."""

    status, code = 413, "body_too_large"


class HeadTooLarge(InvalidRequest):
    """The head of a request is too long, or has too many headers."""

    status, code = 431, "head_too_large"


class RequestTimeout(InvalidRequest):
    """The client sent its request too slowly."""

    status, code = 408, "request_timeout"


class UnsupportedMediaType(InvalidRequest):
    """The body is packed, or its content type is one that a page of any origin can send."""

    status, code = 415, "unsupported_media_type"


class OriginNotAllowed(InvalidRequest):
    """The request comes from a web page whose origin is not allowed."""

    status, code = 403, "origin_not_allowed"


class ClientCertificateRequired(InvalidRequest):
    """The client has sent no certificate, which the server requires, or a weak one."""

    status, code = 403, "client_certificate_required"


class ModelNotFound(InvalidRequest, KeyError):
    """No model of this name is served. Also a `KeyError`, as mappings raise."""

    __str__ = Exception.__str__  # `KeyError.__str__` adds quotes

    status, code = 404, "model_not_found"


class PresetNotFound(InvalidRequest):
    """The model has no preset of this name."""

    status, code = 404, "preset_not_found"


class ModelControlRefused(InvalidRequest):
    """Clients of this server may not load or unload models."""

    status, code = 403, "model_control_refused"


class ModelLoadFailed(InvalidRequest):
    """The model's folder cannot be served; the model that was served stays in service."""

    code = "model_load_failed"


class RouteNotFound(InvalidRequest):
    """No route has this path."""

    status, code = 404, "route_not_found"


class MethodNotAllowed(InvalidRequest):
    """The path exists, but not for this method.

    allowed: the methods of the path.
    """

    status, code = 405, "method_not_allowed"

    def __init__(self, message: str, *, allowed: Iterable[str]) -> None:
        super().__init__(message)
        self._allowed = ", ".join(allowed)

    @property
    def headers(self) -> Mapping[str, str]:
        return {**super().headers, "allow": self._allowed}


class UpgradeRequired(InvalidRequest):
    """The path is a WebSocket's, and the request is not an upgrade."""

    status, code = 426, "upgrade_required"

    @property
    def headers(self) -> Mapping[str, str]:
        return {**super().headers, "upgrade": "websocket", "connection": "upgrade"}


class Unsupported(InvalidRequest):
    """A part of a protocol that this server does not implement."""

    status, code, retry = 501, "unsupported", False


class Unauthorized(InvalidRequest):
    """The server has API keys, and the request has none of them."""

    status, code, type = 401, "invalid_api_key", "authentication_error"

    @property
    def headers(self) -> Mapping[str, str]:
        return {**super().headers, "www-authenticate": "Bearer"}


class StreamUnknown(InvalidRequest):
    """The stream does not exist, or belongs to another tenant."""

    status, code = 404, "stream_unknown"


class StreamExpired(InvalidRequest):
    """The stream was idle for too long and was deleted."""

    status, code = 410, "stream_expired"


class StreamExists(InvalidRequest):
    """A stream with this id exists already."""

    status, code, retry = 409, "stream_exists", False


class StepReused(InvalidRequest):
    """A step with this number was computed with other content."""

    code, retry = "step_reused", False


class WrongStep(InvalidRequest):
    """The step is neither the stream's last nor its next one, which `details` names."""

    status, code, retry = 409, "wrong_step", False

    def __init__(self, number: int, expected: int) -> None:
        super().__init__(
            f"this is step {number}, and the stream's next step is {expected}: send that one, or "
            f"rewind the stream",
            param="step",
        )
        self.details["expected"] = expected


class NoCheckpoint(InvalidRequest):
    """The stream's state after this step is not kept."""

    code, retry = "no_checkpoint", False


class StateRefused(InvalidRequest):
    """A state token that must not reach the model."""


class StateTampered(StateRefused):
    """The token was changed or cut, or has another format."""

    code = "state_tampered"


class StateUnknownKey(StateRefused):
    """The token was sealed under a key that this server does not have."""

    code = "state_unknown_key"


class StateWrongTenant(StateRefused):
    """The token was returned to another tenant."""

    status, code = 403, "state_wrong_tenant"


class StateWrongModel(StateRefused):
    """The token belongs to other weights or another dtype."""

    code = "state_wrong_model"


class StateNotFinite(StateRefused):
    """The state contains NaN or infinity, so it cannot be continued."""

    code = "state_not_finite"


class StateTooLarge(StateRefused):
    """The model's state does not fit into a token."""

    code = "state_too_large"


class StateExpired(StateRefused):
    """The token is older than the operator allows."""

    status, code = 410, "state_expired"


class Refused(ServeError):
    """The server refuses a valid request for now."""

    outcome = "refused"
    usual: ClassVar[str] = "the server cannot accept this request now; retry later"

    def __init__(self, message: str = "", *, param: str | None = None) -> None:
        super().__init__(message or self.usual, param=param)


class Overloaded(Refused):
    """The queue is full."""

    status, code, type = 429, "overloaded", "rate_limit_error"
    retry_after_seconds = 1


class TooManyAtOnce(Overloaded):
    """Another limit than the queue's is reached; clients of `/v2` get this text, not Triton's."""


class RateLimited(Refused):
    """The API key has reached its rate limit."""

    status, code, type = 429, "rate_limited", "rate_limit_error"
    retry_after_seconds = 1


class StateQuotaExceeded(Refused):
    """The API key's server-held streams have reached their limit in bytes; waiting frees none."""

    status, code, type = 429, "state_quota_exceeded", "rate_limit_error"
    retry = False


class Draining(Refused):
    """The server is stopping."""

    status, code = 503, "draining"
    retry_after_seconds = 5


class ModelClosed(Refused):
    """A model of this process was closed."""

    status, code, retry = 503, "model_closed", False
    usual = "the model is closed: load it again"


class ForkedProcess(Refused):
    """A forked process uses a model of its parent, whose threads it does not have."""

    status, code, retry = 503, "forked_process", False
    usual = (
        "this process was forked after a model was loaded, and has neither its threads nor a "
        "usable torch: load models after the fork only, or start processes by "
        "multiprocessing.get_context('spawn')"
    )


class OutOfDeviceMemory(Refused):
    """The device has not enough memory for a step of the request."""

    status, code = 503, "out_of_memory"
    retry_after_seconds = 1
    usual = (
        "the device has not enough memory for this request: send shorter inputs, or fewer at "
        "a time, or retry later"
    )


class ModelBusy(Refused):
    """Unloaded engines of the model still finish their requests, or not all workers can change."""

    status, code = 503, "model_busy"
    retry_after_seconds = 5


class NoProcess(Refused):
    """The system does not allow the server another process or thread."""

    status, code = 503, "no_process"
    retry_after_seconds = 1
    usual = (
        "the server cannot start a process or thread: retry later, or ask the operator to check "
        "the server's log and its process limits (pids_limit, ulimit)"
    )


class StoreUnavailable(Refused):
    """The store of server-held streams does not answer; it may have run the command."""

    status, code = 503, "store_unavailable"
    retry_after_seconds = 1
    usual = "the store of server-held streams does not answer; send the same request again"


class StreamsNeedRedis(Refused):
    """Several workers need a shared store for server-held streams."""

    status, code, retry = 501, "streams_need_redis", False
    usual = (
        "this server has several workers without a shared store: continue with state tokens, "
        "or ask the operator to set SRUSERVE_STORE"
    )


class GrammarsNeedLlguidance(Refused):
    """The library for regular expressions and schemas is not installed."""

    status, code, retry = 501, "grammars_need_llguidance", False

    usual = (
        "regular expressions and schemas need llguidance, which this server does not have: leave "
        "them out, or ask the operator to install sruserve[grammars]"
    )


class DeadlineExceeded(Refused):
    """The request waited in the queue for too long."""

    status, code = 504, "deadline_exceeded"
    usual = (
        "the request waited in the queue for longer than SRUSERVE_QUEUE_TIMEOUT_MS allows; retry "
        "when the server is less busy"
    )


class EngineFailure(ServeError):
    """A step failed; the log says why."""

    status, code = 500, "engine_failure"


class InternalError(ServeError):
    """The server failed on this request in an unforeseen way; the log says why."""

    status, code = 500, "internal_error"
