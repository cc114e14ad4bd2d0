"""`/v1/streams` in the OpenAPI document."""

from typing import Any

from fastapi import FastAPI

from sruserve.server.api.replies import ErrorReply
from sruserve.server.api.streams import messages

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


def describe_streams(app: FastAPI, errors: dict[int | str, dict[str, Any]]) -> None:
    """Declare the routes that `StreamMount` serves; only other methods get here, and 405."""
    shared: dict[str, Any] = {
        "tags": ["streams"],
        "responses": errors
        | {
            404: {"model": ErrorReply, "description": "No such stream, model or preset"},
            409: {"model": ErrorReply, "description": "Not the next step: `expected` is"},
            410: {"model": ErrorReply, "description": "The stream was idle for too long"},
            501: {"model": ErrorReply, "description": "Several workers, and no store they share"},
        },
    }

    @app.post("/v1/streams", status_code=201, summary="Create a stream", **shared)
    async def create_stream(body: messages.CreateStream) -> messages.StreamReply:
        """Hold a stream on the server: from nothing, a state or a preset."""
        raise NotImplementedError

    @app.get("/v1/streams/{id}", summary="Describe a stream", **shared)
    async def describe_stream(id: str) -> messages.StreamReply:  # noqa: A002
        """It lives no longer for that."""
        raise NotImplementedError

    @app.delete("/v1/streams/{id}", summary="Delete a stream", **shared)
    async def delete_stream(id: str) -> messages.StreamDeleted:  # noqa: A002
        """After the step that it is in."""
        raise NotImplementedError

    @app.post("/v1/streams/{id}/steps", summary="Do a step", **shared)
    async def step_stream(id: str, body: Step) -> StepReply:  # noqa: A002
        """What the route of the model's task answers, exactly once for each number.

        The last step again, byte for byte, gives the stored reply.
        """
        raise NotImplementedError

    @app.post("/v1/streams/{id}/fork", status_code=201, summary="Fork a stream", **shared)
    async def fork_stream(id: str, body: messages.Fork) -> messages.StreamList:  # noqa: A002
        """More streams in the same state, which go on from the same number."""
        raise NotImplementedError

    @app.post("/v1/streams/{id}/rewind", summary="Go back to a step", **shared)
    async def rewind_stream(id: str, body: messages.Rewind) -> messages.StreamReply:  # noqa: A002
        """To the state after one of its `checkpoints`."""
        raise NotImplementedError

    @app.get("/v1/streams/{id}/state", summary="Hand the state over", **shared)
    async def state_of_stream(id: str) -> messages.StreamState:  # noqa: A002
        """The state after the last step as a token, which `state` takes anywhere."""
        raise NotImplementedError
