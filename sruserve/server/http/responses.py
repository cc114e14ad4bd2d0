"""The models of all replies: they describe the API, and tests validate replies against them."""

from typing import Literal

from pydantic import BaseModel, Field


class Classification(BaseModel):
    """The classification of one input; nulls until the first word is complete."""

    label: str | None
    score: float | None = Field(description="Probability of `label`.")
    scores: dict[str, float] | None
    state: str | None


class Steps(BaseModel):
    steps: int = Field(description="Number of computed tokens or feature rows.")


class ClassifyReply(BaseModel):
    id: str
    model: str
    results: list[Classification]
    usage: Steps


class Tag(BaseModel):
    """One step: a token of a text, or the step at `index` of ids or features."""

    text: str | None = None
    index: int | None = Field(None, description="Index of the step, for ids and features.")
    label: str
    score: float = Field(description="Probability of `label`.")
    start: int | None = Field(
        None,
        description="Offset in characters of this request's `input`; negative for a word that was "
        "held back from the last chunk.",
    )
    end: int | None = None


class Span(BaseModel):
    """Consecutive steps with one label."""

    label: str = Field(description="Without B- or I-; empty if the labels are only B and I.")
    text: str | None = Field(None, description="The part of the span in this request.")
    start: int = Field(description="Offset of a character, or index of a step, as for tokens.")
    end: int
    score: float = Field(description="Mean of its tokens' scores.")
    continued: bool = Field(description="Whether it continues the last span of the chunk before.")


class Tagging(BaseModel):
    """The labels of one input."""

    tokens: list[Tag]
    spans: list[Span]
    state: str | None


class TagReply(BaseModel):
    id: str
    model: str
    results: list[Tagging]
    usage: Steps


class Encoding(BaseModel):
    """The outputs of a network for one input."""

    outputs: list[list[float | None]] = Field(
        description="Steps x features; null for a value that is not finite."
    )
    state: str | None


class EncodeReply(BaseModel):
    id: str
    model: str
    results: list[Encoding]
    usage: Steps


class Score(BaseModel):
    """The likelihood of one input; nulls if no token has a predecessor."""

    log_likelihood: float | None = Field(description="In nats; null if it is not finite.")
    bits_per_character: float | None
    bits_per_token: float | None
    characters: int
    tokens: int = Field(description="Number of scored tokens: all that have a predecessor.")
    state: str | None


class ScoreReply(BaseModel):
    id: str
    model: str
    results: list[Score]
    usage: Steps


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None]
    text_offset: list[int]


class Choice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | None = Field(None, description="The stop string that ended the text.")
    state: str | None = Field(
        None,
        description="The state after the text: at its end, and at the intervals of "
        "`stream_options.state_interval`.",
    )
    token_ids: list[int] | None = Field(
        None, description="For models without a vocabulary, and with `return_token_ids`."
    )


class PromptTokensDetails(BaseModel):
    cached_tokens: int = Field(
        description="Steps already in the states or the preset; not in `prompt_tokens`."
    )


class CompletionUsage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionReply(BaseModel):
    """A completion, or one event of a streamed one."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage | None = None


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class ErrorReply(BaseModel):
    error: ErrorBody


class ModelInfo(BaseModel):
    """A served model."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "sruserve"
    version: str = Field(description="Number of the version folder; 1 if there are no versions.")
    task: str
    digest: str
    dtype: str
    streams: bool = Field(description="Whether the model can continue from a state.")
    state_bytes: int = Field(description="Bytes of one stream's state.")
    presets: list[str] = Field(description="Names that `preset` accepts.")
    labels: list[str]
    vocab_size: int | None


class ModelList(BaseModel):
    object: str = "list"
    data: list[ModelInfo]


class Prediction(BaseModel):
    """A label in text-embeddings-inference's shape."""

    score: float
    label: str


class PredictError(BaseModel):
    """An error in text-embeddings-inference's shape."""

    error: str
    error_type: Literal["empty", "tokenizer", "validation", "overloaded", "unhealthy", "backend"]


class Status(BaseModel):
    """The reply to a probe."""

    status: Literal["ok", "draining", "loading", "failed"]
