"""The reply of `classify`."""

from pydantic import BaseModel, Field

from sruserve.server.http.responses.results import Id, ModelId, State, Steps


class Classification(BaseModel):
    """The classification of one input; nulls until the first word is complete."""

    label: str | None = Field(description="The likeliest label.")
    score: float | None = Field(description="Probability of `label`.")
    scores: dict[str, float] | None = Field(
        description="Probability of each label; they add up to 1."
    )
    state: State


class ClassifyReply(BaseModel):
    id: Id
    model: ModelId
    results: list[Classification] = Field(description="One entry for each input, in their order.")
    usage: Steps = Field(description="What the request computed.")
