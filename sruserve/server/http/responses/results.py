"""The reply of any task, and the fields that replies share."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

Id = Annotated[str, Field(description="Id of the reply.")]
ModelId = Annotated[str, Field(description="Id of the model that answered.")]
State = Annotated[
    str | None,
    Field(
        description="State that continues the input, if the request has `return_state` or `more`; "
        "else null."
    ),
]


class Steps(BaseModel):
    steps: int = Field(description="Number of computed tokens or feature rows.")


class ResultsReply(BaseModel):
    """The results of a task."""

    id: Id
    model: ModelId
    results: list[dict[str, Any]] = Field(
        description="One entry for each input, in their order, with the fields of the task."
    )
    usage: Steps = Field(description="What the request computed.")
