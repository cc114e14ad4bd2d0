"""The routes of `/v1/streams`."""

from sruserve.server.errors import (
    ModelNotFound,
    NoCheckpoint,
    OutOfDeviceMemory,
    StateQuotaExceeded,
    StateTampered,
    StateTooLarge,
    StateUnknownKey,
    StateWrongModel,
    StepReused,
    StoreUnavailable,
    StreamExpired,
    StreamsNeedRedis,
    StreamUnknown,
    WrongStep,
)
from sruserve.server.http.responses.complete import CompletionReply
from sruserve.server.http.responses.error import ErrorReply
from sruserve.server.http.routes import (
    ANY_TENANT,
    BODY,
    EVENTS,
    GRAMMAR,
    LABELS,
    STATE,
    TASK,
    Errors,
    Handler,
    Reply,
    Route,
)
from sruserve.server.http.streams import messages
from sruserve.server.http.streams.endpoints import (
    Context,
    Create,
    Delete,
    Describe,
    ForkStream,
    RewindStream,
    State,
    StreamEndpoint,
)
from sruserve.server.http.streams.steps import Steps

_PREFIX = "/v1/streams"
_TAG = "streams"
_STORE: Errors = (*ANY_TENANT, StreamsNeedRedis, StoreUnavailable)
# A stream's own state is refused if the store, the keys or the model have changed.
_STREAM: Errors = (
    *_STORE, StreamUnknown, StreamExpired, ModelNotFound,
    StateTampered, StateUnknownKey, StateWrongModel,
)  # fmt: skip
_MEMORY: Errors = (StateQuotaExceeded, OutOfDeviceMemory)

_Step = (
    messages.ClassifyStep
    | messages.TagStep
    | messages.EncodeStep
    | messages.ScoreStep
    | messages.CompleteStep
    | messages.RegressStep
)
_StepReply = (
    messages.ClassifyStepReply
    | messages.TagStepReply
    | messages.EncodeStepReply
    | messages.ScoreStepReply
    | messages.CompleteStepReply
    | messages.RegressStepReply
)
_Event = CompletionReply | ErrorReply

ROUTES: tuple[Route[type[StreamEndpoint]], ...] = (
    Route(
        "POST", _PREFIX, Create, "create_stream", _TAG,
        (Reply(messages.StreamReply, 201),),
        (*_STORE, *BODY, ModelNotFound, *STATE, *_MEMORY),
        messages.CreateStream, body_is_optional=True,
    ),
    Route(
        "GET", f"{_PREFIX}/{{id}}", Describe, "describe_stream", _TAG,
        (Reply(messages.StreamReply),), _STREAM,
    ),
    Route(
        "DELETE", f"{_PREFIX}/{{id}}", Delete, "delete_stream", _TAG,
        (Reply(messages.StreamDeleted),), _STREAM,
    ),
    Route(
        "POST", f"{_PREFIX}/{{id}}/steps", Steps, "step_stream", _TAG,
        (Reply(_StepReply), Reply(_Event, media_type=EVENTS)),
        (*_STREAM, *TASK, *LABELS, *GRAMMAR, WrongStep, StepReused, StateQuotaExceeded),
        _Step,
    ),
    Route(
        "POST", f"{_PREFIX}/{{id}}/fork", ForkStream, "fork_stream", _TAG,
        (Reply(messages.StreamList, 201),), (*_STREAM, *BODY, *_MEMORY),
        messages.Fork, body_is_optional=True,
    ),
    Route(
        "POST", f"{_PREFIX}/{{id}}/rewind", RewindStream, "rewind_stream", _TAG,
        (Reply(messages.StreamReply),), (*_STREAM, *BODY, NoCheckpoint),
        messages.Rewind,
    ),
    Route(
        "GET", f"{_PREFIX}/{{id}}/state", State, "state_of_stream", _TAG,
        (Reply(messages.StreamState),), (*_STREAM, *BODY, StateTooLarge),
    ),
)  # fmt: skip


def mount(context: Context) -> list[tuple[Route[type[StreamEndpoint]], Handler]]:
    """Create the endpoints of all routes."""
    return [(route, route.handler(route.path, context)) for route in ROUTES]
