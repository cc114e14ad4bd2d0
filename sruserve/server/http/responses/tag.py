"""The reply of `tag`."""

from pydantic import BaseModel, Field

from sruserve.server.http.responses.results import Id, ModelId, State, Steps


class Tag(BaseModel):
    """One step: a token of a text, or the step at `index` of ids or features."""

    text: str | None = Field(
        None, description="The token's part of the input; null for ids and features."
    )
    index: int | None = Field(None, description="Index of the step, for ids and features.")
    label: str = Field(description="The likeliest label of the step.")
    score: float = Field(description="Probability of `label`.")
    start: int | None = Field(
        None,
        description="Offset in characters of this request's `input`; negative for a word that was "
        "held back from the last chunk, or a label that was pending.",
    )
    end: int | None = Field(
        None, description="Offset of the character after the token; null for ids and features."
    )


class Span(BaseModel):
    """Consecutive steps with one label."""

    label: str = Field(description="Without B- or I-; empty if the labels are only B and I.")
    text: str | None = Field(None, description="The part of the span in this request.")
    start: int = Field(description="Offset of a character, or index of a step, as for tokens.")
    end: int = Field(description="Offset of the character, or index of the step, after the span.")
    score: float = Field(description="Mean of its tokens' scores.")
    continued: bool = Field(description="Whether it continues the last span of the chunk before.")


class Tagging(BaseModel):
    """The labels of one input."""

    tokens: list[Tag] = Field(
        description="The steps of the input, in order; for a model with a CRF, those whose labels "
        "have become final, which may be of earlier chunks."
    )
    spans: list[Span] = Field(description="The spans that the labels mark, in order.")
    pending: int | None = Field(
        None,
        description="Only for a model with a CRF: the number of steps so far whose labels later "
        "chunks may change; 0 without `more`.",
    )
    state: State


class TagReply(BaseModel):
    id: Id
    model: ModelId
    results: list[Tagging] = Field(description="One entry for each input, in their order.")
    usage: Steps = Field(description="What the request computed.")
