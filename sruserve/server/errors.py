"""Every way in which a request can fail, with its stable code and HTTP status.

ServeError
├── InvalidRequest              422  invalid_request
│   ├── EmptyInput              422  empty_input
│   ├── InputTooLong            422  input_too_long
│   ├── NotFinite               422  not_finite
│   ├── WrongTask               422  wrong_task
│   ├── CannotStream            422  cannot_stream
│   ├── UnfitInput              422  the code that the model gave it
│   ├── ConstraintUnsatisfiable 422  constraint_unsatisfiable
│   ├── MalformedBody           400  malformed_body
│   ├── BodyTooLarge            413  body_too_large
│   ├── HeadTooLarge            431  head_too_large
│   ├── RequestTimeout          408  request_timeout
│   ├── UnsupportedMediaType    415  unsupported_media_type
│   ├── OriginNotAllowed        403  origin_not_allowed
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

from sruserve.model.errors import faults as faults  # for all who catch what this file has


class ServeError(Exception):
    """A failure that the client is told of: what happened and what to change.

    param: the field of the request that is to blame, if it is one.
    retry_after_seconds: when the same request may be sent again.
    retry: what a client library is told of sending it again; None: as its status says.
    details: what programs want to know beside the code.
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
        """What the reply says beside its body."""
        headers = {}
        if self.retry_after_seconds is not None:
            headers["retry-after"] = str(self.retry_after_seconds)
        if self.retry is not None:
            headers["x-should-retry"] = "true" if self.retry else "false"
        return headers

    @property
    def told(self) -> dict[str, str | int | None]:
        """What every error says, whatever the protocol."""
        return {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
            **self.details,
        }

    def body(self) -> bytes:
        """The one JSON shape that every error has."""
        return to_json({"error": self.told})


class InvalidRequest(ServeError):
    """The request asks for something that cannot be."""

    status, code, type, outcome = 422, "invalid_request", "invalid_request_error", "invalid"


class EmptyInput(InvalidRequest):
    """There is nothing to read, and no state to continue."""

    code = "empty_input"


class InputTooLong(InvalidRequest):
    """One input, or the number of inputs, is over the operator's limit."""

    code = "input_too_long"


class NotFinite(InvalidRequest):
    """A number in the request is NaN or infinite, or makes the model's numbers so."""

    code = "not_finite"


class WrongTask(InvalidRequest):
    """The model does something else than this route."""

    code = "wrong_task"


class CannotStream(InvalidRequest):
    """A model that reads whole inputs was asked to continue, or for a state to continue from."""

    code = "cannot_stream"


class UnfitInput(InvalidRequest):
    """The model's own text or configuration rules refuse the input; `code` is the model's."""

    def __init__(self, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.code = code


class ConstraintUnsatisfiable(InvalidRequest):
    """There is no text that matches, or none that the model can spell."""

    code = "constraint_unsatisfiable"


class MalformedBody(InvalidRequest):
    """The body is not JSON."""

    status, code = 400, "malformed_body"


class BodyTooLarge(InvalidRequest):
    """The body is over the operator's limit, whatever its headers said."""

    status, code = 413, "body_too_large"


class HeadTooLarge(InvalidRequest):
    """The head of a request is too long, or has too many headers."""

    status, code = 431, "head_too_large"


class RequestTimeout(InvalidRequest):
    """The client sent its request too slowly."""

    status, code = 408, "request_timeout"


class UnsupportedMediaType(InvalidRequest):
    """The body's content type is one that a page of any origin can send."""

    status, code = 415, "unsupported_media_type"


class OriginNotAllowed(InvalidRequest):
    """The request comes from a page in a browser, and not from one of this server."""

    status, code = 403, "origin_not_allowed"


class ModelNotFound(InvalidRequest, KeyError):
    """No model of that name is served."""

    # a `KeyError`, as every mapping raises; but its `__str__` would be in quotes
    __str__ = Exception.__str__

    status, code = 404, "model_not_found"


class PresetNotFound(InvalidRequest):
    """The model has no preset of that name."""

    status, code = 404, "preset_not_found"


class ModelControlRefused(InvalidRequest):
    """This server's models are not to be loaded or unloaded by its clients."""

    status, code = 403, "model_control_refused"


class ModelLoadFailed(InvalidRequest):
    """What is in the model's folder cannot be served; what was served still is."""

    code = "model_load_failed"


class RouteNotFound(InvalidRequest):
    """Nothing is at that path."""

    status, code = 404, "route_not_found"


class MethodNotAllowed(InvalidRequest):
    """The path exists, but not for that method.

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
    """What is at that path is a WebSocket, and the request does not ask for one."""

    status, code = 426, "upgrade_required"

    @property
    def headers(self) -> Mapping[str, str]:
        return {**super().headers, "upgrade": "websocket", "connection": "upgrade"}


class Unsupported(InvalidRequest):
    """A part of a protocol that this server does not have."""

    status, code, retry = 501, "unsupported", False


class Unauthorized(InvalidRequest):
    """The server has API keys, and the request came with none of them."""

    status, code, type = 401, "invalid_api_key", "authentication_error"

    @property
    def headers(self) -> Mapping[str, str]:
        return {**super().headers, "www-authenticate": "Bearer"}


class StreamUnknown(InvalidRequest):
    """The server holds no such stream, or it is another tenant's."""

    status, code = 404, "stream_unknown"


class StreamExpired(InvalidRequest):
    """The stream was idle for so long that its state is gone."""

    status, code = 410, "stream_expired"


class StreamExists(InvalidRequest):
    """A stream of that id is held already."""

    status, code, retry = 409, "stream_exists", False


class StepReused(InvalidRequest):
    """The step was done with other content."""

    code, retry = "step_reused", False


class WrongStep(InvalidRequest):
    """Neither the stream's last step nor the one after it; `details` names the latter."""

    status, code, retry = 409, "wrong_step", False

    def __init__(self, number: int, expected: int) -> None:
        super().__init__(
            f"this is step {number}, and the stream's next step is {expected}: send that one, or "
            f"rewind the stream",
            param="step",
        )
        self.details["expected"] = expected


class NoCheckpoint(InvalidRequest):
    """The stream's state after that step is not kept."""

    code, retry = "no_checkpoint", False


class StateRefused(InvalidRequest):
    """A state token that must not reach the model."""


class StateTampered(StateRefused):
    """The state was changed or cut, or is of another format."""

    code = "state_tampered"


class StateUnknownKey(StateRefused):
    """The state is sealed under a key that this server does not have."""

    code = "state_unknown_key"


class StateWrongTenant(StateRefused):
    """The state is authentic, but was returned for another API key."""

    status, code = 403, "state_wrong_tenant"


class StateWrongModel(StateRefused):
    """The state is authentic, but of other weights or another dtype."""

    code = "state_wrong_model"


class StateNotFinite(StateRefused):
    """The state holds NaN or infinity: its stream went wrong, and continuing it would too."""

    code = "state_not_finite"


class StateTooLarge(StateRefused):
    """The model's state is larger than a token may be."""

    code = "state_too_large"


class StateExpired(StateRefused):
    """The state is authentic, but older than the operator allows."""

    status, code = 410, "state_expired"


class Refused(ServeError):
    """Nothing is wrong with the request; the server does not take it now."""

    outcome = "refused"
    usual: ClassVar[str] = "the server does not take this request now; retry"

    def __init__(self, message: str = "", *, param: str | None = None) -> None:
        super().__init__(message or self.usual, param=param)


class Overloaded(Refused):
    """The queue is full."""

    status, code, type = 429, "overloaded", "rate_limit_error"
    retry_after_seconds = 1


class TooManyAtOnce(Overloaded):
    """Something else than the queue is full: clients of `/v2` get its text, not Triton's."""


class RateLimited(Refused):
    """The API key has used up what it may use in a second."""

    status, code, type = 429, "rate_limited", "rate_limit_error"
    retry_after_seconds = 1


class StateQuotaExceeded(Refused):
    """The API key's server-held streams have as many bytes as they may; time alone frees none."""

    status, code, type = 429, "state_quota_exceeded", "rate_limit_error"
    retry = False


class Draining(Refused):
    """The server is stopping."""

    status, code = 503, "draining"
    retry_after_seconds = 5


class OutOfDeviceMemory(Refused):
    """The request was admitted, and the device has no memory for its step."""

    status, code = 503, "out_of_memory"
    retry_after_seconds = 1
    usual = (
        "the device has no memory for this request: send shorter inputs, or fewer at a time, or "
        "retry"
    )


class ModelBusy(Refused):
    """Engines of the model that were unloaded still finish what they began."""

    status, code = 503, "model_busy"
    retry_after_seconds = 5


class NoProcess(Refused):
    """The system lets this server start no more processes or threads."""

    status, code = 503, "no_process"
    retry_after_seconds = 1
    usual = (
        "no process or thread can be started: retry, or ask the operator to look at the server's "
        "log and at its limits of processes (pids_limit, ulimit)"
    )


class StoreUnavailable(Refused):
    """The store of server-held streams does not answer; what it was asked may be done or not."""

    status, code = 503, "store_unavailable"
    retry_after_seconds = 1
    usual = "the store of server-held streams does not answer; send the same request again"


class StreamsNeedRedis(Refused):
    """Several workers cannot share streams that one of them holds in its memory."""

    status, code, retry = 501, "streams_need_redis", False
    usual = (
        "this server has several workers and no store that they share: continue with state tokens, "
        "or ask the operator to set SRUSERVE_STORE"
    )


class GrammarsNeedLlguidance(Refused):
    """The library that follows regular expressions and schemas is not installed."""

    status, code, retry = 501, "grammars_need_llguidance", False

    usual = (
        "regular expressions and schemas need llguidance, which this server does not have: leave "
        "them out, or ask the operator to install sruserve[grammars]"
    )


class DeadlineExceeded(Refused):
    """The request waited in the queue for longer than it may."""

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
