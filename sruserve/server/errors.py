"""The errors of requests, each with its stable code. Protocols say how they send one.

ServeError
├── InvalidRequest              invalid_request
│   ├── EmptyInput              empty_input
│   ├── InputTooLong            input_too_long
│   ├── NotFinite               not_finite
│   ├── WrongTask               wrong_task
│   ├── CannotStream            cannot_stream
│   ├── LabelsUndecided         labels_undecided
│   ├── UnfitInput              the code that the model gave it
│   ├── ConstraintUnsatisfiable constraint_unsatisfiable
│   ├── MalformedBody           malformed_body
│   ├── ModelNotFound           model_not_found
│   ├── PresetNotFound          preset_not_found
│   ├── ModelControlRefused     model_control_refused
│   ├── ModelLoadFailed         model_load_failed
│   ├── Unsupported             unsupported
│   ├── Unauthorized            invalid_api_key
│   ├── StreamUnknown           stream_unknown
│   ├── StreamExpired           stream_expired
│   ├── StreamExists            stream_exists
│   ├── StepReused              step_reused
│   ├── WrongStep               wrong_step
│   ├── NoCheckpoint            no_checkpoint
│   └── StateRefused
│       ├── StateTampered       state_tampered
│       ├── StateUnknownKey     state_unknown_key
│       ├── StateWrongTenant    state_wrong_tenant
│       ├── StateWrongModel     state_wrong_model
│       ├── StateNotFinite      state_not_finite
│       ├── StateTooLarge       state_too_large
│       └── StateExpired        state_expired
├── Refused
│   ├── Overloaded              overloaded
│   │   └── TooManyAtOnce       overloaded
│   ├── RateLimited             rate_limited
│   ├── StateQuotaExceeded      state_quota_exceeded
│   ├── Draining                draining
│   ├── OutOfDeviceMemory       out_of_memory
│   ├── ModelBusy               model_busy
│   ├── ModelClosed             model_closed
│   ├── ForkedProcess           forked_process
│   ├── NoProcess               no_process
│   ├── StoreUnavailable        store_unavailable
│   ├── StreamsNeedRedis        streams_need_redis
│   ├── GrammarsNeedLlguidance  grammars_need_llguidance
│   └── DeadlineExceeded        deadline_exceeded
├── EngineFailure               engine_failure
└── InternalError               internal_error
"""

from collections.abc import Iterable
from itertools import islice
from typing import ClassVar

from sruserve.model.errors import faults as faults  # for callers that catch these errors

_SHOWN = 20


def first_of(names: Iterable[str]) -> str:
    """The names for a message; of many, which would make it long, the first ones."""
    shown = list(islice(names, _SHOWN + 1))
    return ", ".join([*shown[:_SHOWN], *("…" for _ in shown[_SHOWN:])]) or "none"


class ServeError(Exception):
    """A failure that is reported to the client: what happened and what to change.

    param: the field of the request that caused it, if any.
    retry_after_seconds: the time after which the client may retry.
    retry: whether client libraries should retry; None: the protocol's status says it.
    outcome: how metrics and logs count it: `invalid`, `refused` or `error`.
    details: values for programs beside the code.
    """

    code: str = ""
    outcome: ClassVar[str] = "error"
    retry_after_seconds: int | None = None
    retry: ClassVar[bool | None] = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.details: dict[str, int] = {}


class InvalidRequest(ServeError):
    """The request is invalid."""

    code, outcome = "invalid_request", "invalid"


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
    """More labels of a stream than its state may hold depend on later steps."""

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

    code = "malformed_body"


class ModelNotFound(InvalidRequest, KeyError):
    """No model of this name is served. Also a `KeyError`, as mappings raise."""

    __str__ = Exception.__str__  # `KeyError.__str__` adds quotes

    code = "model_not_found"


class PresetNotFound(InvalidRequest):
    """The model has no preset of this name."""

    code = "preset_not_found"


class ModelControlRefused(InvalidRequest):
    """Clients of this server may not load or unload models."""

    code = "model_control_refused"


class ModelLoadFailed(InvalidRequest):
    """The model's folder cannot be served; the model that was served stays in service."""

    code = "model_load_failed"


class Unsupported(InvalidRequest):
    """A part of a protocol that this server does not implement."""

    code, retry = "unsupported", False


class Unauthorized(InvalidRequest):
    """The server has API keys, and the request has none of them."""

    code = "invalid_api_key"


class StreamUnknown(InvalidRequest):
    """The stream does not exist, or belongs to another tenant."""

    code = "stream_unknown"


class StreamExpired(InvalidRequest):
    """The stream was idle for too long and was deleted."""

    code = "stream_expired"


class StreamExists(InvalidRequest):
    """A stream with this id exists already."""

    code, retry = "stream_exists", False


class StepReused(InvalidRequest):
    """A step with this number was computed with other content."""

    code, retry = "step_reused", False


class WrongStep(InvalidRequest):
    """The step is neither the stream's last nor its next one, which `details` names."""

    code, retry = "wrong_step", False

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

    code = "state_wrong_tenant"


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

    code = "state_expired"


class Refused(ServeError):
    """The server refuses a valid request for now."""

    outcome = "refused"
    usual: ClassVar[str] = "the server cannot accept this request now; retry later"

    def __init__(self, message: str = "", *, param: str | None = None) -> None:
        super().__init__(message or self.usual, param=param)


class Overloaded(Refused):
    """The queue is full."""

    code = "overloaded"
    retry_after_seconds = 1


class TooManyAtOnce(Overloaded):
    """Another limit than the queue's is reached."""


class RateLimited(Refused):
    """The API key has reached its rate limit."""

    code = "rate_limited"
    retry_after_seconds = 1


class StateQuotaExceeded(Refused):
    """The API key's server-held streams have reached their limit in bytes; waiting frees none."""

    code = "state_quota_exceeded"
    retry = False


class Draining(Refused):
    """The server is stopping."""

    code = "draining"
    retry_after_seconds = 5


class ModelClosed(Refused):
    """A model of this process was closed."""

    code, retry = "model_closed", False
    usual = "the model is closed: load it again"


class ForkedProcess(Refused):
    """A forked process uses a model of its parent, whose threads it does not have."""

    code, retry = "forked_process", False
    usual = (
        "this process was forked after a model was loaded, and has neither its threads nor a "
        "usable torch: load models after the fork only, or start processes by "
        "multiprocessing.get_context('spawn')"
    )


class OutOfDeviceMemory(Refused):
    """The device has not enough memory for a step of the request."""

    code = "out_of_memory"
    retry_after_seconds = 1
    usual = (
        "the device has not enough memory for this request: send shorter inputs, or fewer at "
        "a time, or retry later"
    )


class ModelBusy(Refused):
    """Unloaded engines of the model still finish their requests, or not all workers can change."""

    code = "model_busy"
    retry_after_seconds = 5


class NoProcess(Refused):
    """The system does not allow the server another process or thread."""

    code = "no_process"
    retry_after_seconds = 1
    usual = (
        "the server cannot start a process or thread: retry later, or ask the operator to check "
        "the server's log and its process limits (pids_limit, ulimit)"
    )


class StoreUnavailable(Refused):
    """The store of server-held streams does not answer; it may have run the command."""

    code = "store_unavailable"
    retry_after_seconds = 1
    usual = "the store of server-held streams does not answer; send the same request again"


class StreamsNeedRedis(Refused):
    """Several workers need a shared store for server-held streams."""

    code, retry = "streams_need_redis", False
    usual = (
        "this server has several workers without a shared store: continue with state tokens, "
        "or ask the operator to set SRUSERVE_STORE"
    )


class GrammarsNeedLlguidance(Refused):
    """The library for regular expressions and schemas is not installed."""

    code, retry = "grammars_need_llguidance", False

    usual = (
        "regular expressions and schemas need llguidance, which this server does not have: leave "
        "them out, or ask the operator to install sruserve[grammars]"
    )


class DeadlineExceeded(Refused):
    """The request waited in the queue for too long."""

    code = "deadline_exceeded"
    usual = (
        "the request waited in the queue for longer than SRUSERVE_QUEUE_TIMEOUT_MS allows; retry "
        "when the server is less busy"
    )


class EngineFailure(ServeError):
    """A step failed; the log says why."""

    code = "engine_failure"


class InternalError(ServeError):
    """The server failed on this request in an unforeseen way; the log says why."""

    code = "internal_error"
