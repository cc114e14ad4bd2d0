"""The reply of `regress`."""

from typing import Annotated

from pydantic import BaseModel, Field

from sruserve.server.http.responses.results import Id, ModelId, State, Steps

Values = Annotated[
    dict[str, float | dict[str, float]],
    Field(description="Each value by its name; with quantiles, each quantile by its text."),
]


class Regression(BaseModel):
    """The values that one input predicts."""

    values: Values | None = Field(
        description="The values after the last step; null before the first."
    )
    steps: list[Values] | None = Field(
        description="The values after each step, if the model predicts at every step; else null."
    )
    ahead: list[Values] | None = Field(
        description="The values of the future steps, if the request has `steps_ahead`; else null."
    )
    state: State


class RegressReply(BaseModel):
    id: Id
    model: ModelId
    results: list[Regression] = Field(description="One entry for each input, in their order.")
    usage: Steps = Field(description="What the request computed.")
