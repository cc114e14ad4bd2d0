"""The reply of `score`."""

from pydantic import BaseModel, Field

from sruserve.server.http.responses.results import Id, ModelId, State, Steps


class Score(BaseModel):
    """The likelihood of one input; nulls if no token has a predecessor."""

    log_likelihood: float | None = Field(description="In nats; null if it is not finite.")
    bits_per_character: float | None = Field(
        description="Negative log-likelihood in bits, divided by `characters`."
    )
    bits_per_token: float | None = Field(
        description="Negative log-likelihood in bits, divided by `tokens`."
    )
    characters: int = Field(description="Number of characters of the scored tokens.")
    tokens: int = Field(description="Number of scored tokens: all that have a predecessor.")
    state: State


class ScoreReply(BaseModel):
    id: Id
    model: ModelId
    results: list[Score] = Field(description="One entry for each input, in their order.")
    usage: Steps = Field(description="What the request computed.")
