"""The reply of `encode`."""

from pydantic import BaseModel, Field

from sruserve.server.http.responses.results import Id, ModelId, State, Steps


class Encoding(BaseModel):
    """The outputs of a network for one input."""

    outputs: list[list[float | None]] = Field(
        description="Steps x features; null for a value that is not finite."
    )
    state: State


class EncodeReply(BaseModel):
    id: Id
    model: ModelId
    results: list[Encoding] = Field(description="One entry for each input, in their order.")
    usage: Steps = Field(description="What the request computed.")
