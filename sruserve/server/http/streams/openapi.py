"""`/v1/streams` in the OpenAPI document; `StreamMount` answers, other methods get 405 here."""

from fastapi import APIRouter

from sruserve.server.http.openapi import ERRORS
from sruserve.server.http.responses import ErrorReply
from sruserve.server.http.streams import messages

Step = (
    messages.ClassifyStep
    | messages.TagStep
    | messages.EncodeStep
    | messages.ScoreStep
    | messages.CompleteStep
)
StepReply = (
    messages.ClassifyStepReply
    | messages.TagStepReply
    | messages.EncodeStepReply
    | messages.ScoreStepReply
    | messages.CompleteStepReply
)
_ERRORS = ERRORS | {
    404: {"model": ErrorReply, "description": "No such stream, model or preset"},
    409: {"model": ErrorReply, "description": "Not the next step: `expected` is"},
    410: {"model": ErrorReply, "description": "The stream was idle for too long"},
    501: {"model": ErrorReply, "description": "Several workers, and no store they share"},
}

router = APIRouter(prefix="/v1/streams", tags=["streams"], responses=_ERRORS)


@router.post("", status_code=201, summary="Create a stream")
async def create_stream(body: messages.CreateStream) -> messages.StreamReply:
    """Hold a stream on the server: from nothing, a state or a preset."""
    raise NotImplementedError


@router.get("/{id}", summary="Describe a stream")
async def describe_stream(id: str) -> messages.StreamReply:  # noqa: A002
    """It lives no longer for that."""
    raise NotImplementedError


@router.delete("/{id}", summary="Delete a stream")
async def delete_stream(id: str) -> messages.StreamDeleted:  # noqa: A002
    """After the step that it is in."""
    raise NotImplementedError


@router.post("/{id}/steps", summary="Do a step")
async def step_stream(id: str, body: Step) -> StepReply:  # noqa: A002
    """What the route of the model's task answers, exactly once for each number.

    The last step again, byte for byte, gives the stored reply.
    """
    raise NotImplementedError


@router.post("/{id}/fork", status_code=201, summary="Fork a stream")
async def fork_stream(id: str, body: messages.Fork) -> messages.StreamList:  # noqa: A002
    """More streams in the same state, which go on from the same number."""
    raise NotImplementedError


@router.post("/{id}/rewind", summary="Go back to a step")
async def rewind_stream(id: str, body: messages.Rewind) -> messages.StreamReply:  # noqa: A002
    """To the state after one of its `checkpoints`."""
    raise NotImplementedError


@router.get("/{id}/state", summary="Hand the state over")
async def state_of_stream(id: str) -> messages.StreamState:  # noqa: A002
    """The state after the last step as a token, which `state` takes anywhere."""
    raise NotImplementedError
