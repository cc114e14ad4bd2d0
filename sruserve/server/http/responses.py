"""What clients get: the models that describe replies, and that tests hold them to."""

from typing import Literal

from pydantic import BaseModel, Field


class Classification(BaseModel):
    """What a model makes of one input; nulls when no word has been finished yet."""

    label: str | None
    score: float | None = Field(description="Probability of `label`.")
    scores: dict[str, float] | None
    state: str | None


class Steps(BaseModel):
    steps: int = Field(description="Tokens or feature rows that were computed.")


class ClassifyReply(BaseModel):
    id: str
    model: str
    results: list[Classification]
    usage: Steps


class Tag(BaseModel):
    """One step: a token of a text, or the step at `index` of ids or features."""

    text: str | None = None
    index: int | None = Field(None, description="Of ids and features, instead of a text.")
    label: str
    score: float = Field(description="Probability of `label`.")
    start: int | None = Field(
        None,
        description="Characters of this request's `input`; negative for a word that was held back "
        "from the last chunk.",
    )
    end: int | None = None


class Span(BaseModel):
    """Steps that belong together."""

    label: str = Field(description="Without B- or I-; empty where the labels are bare B and I.")
    text: str | None = Field(None, description="As much of it as lies in this request.")
    start: int = Field(description="As of the tokens: a character, or the index of a step.")
    end: int
    score: float = Field(description="Mean of its tokens' scores.")
    continued: bool = Field(description="It goes on with the last span of the chunk before.")


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
    """What a network gives for one input."""

    outputs: list[list[float | None]] = Field(
        description="Steps x features; null for what is not finite."
    )
    state: str | None


class EncodeReply(BaseModel):
    id: str
    model: str
    results: list[Encoding]
    usage: Steps


class Score(BaseModel):
    """How likely one input is; nulls where nothing had anything before it."""

    log_likelihood: float | None = Field(description="In nats; null if it is not finite.")
    bits_per_character: float | None
    bits_per_token: float | None
    characters: int
    tokens: int = Field(description="Tokens that were scored: those with something before them.")
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
        description="What continues the text: at its end, and on the way where "
        "`stream_options.state_interval` asks for it.",
    )
    token_ids: list[int] | None = Field(
        None, description="For models without a vocabulary, and with `return_token_ids`."
    )


class PromptTokensDetails(BaseModel):
    cached_tokens: int = Field(
        description="Steps that states or a preset spared, beside `prompt_tokens`."
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
    """A model that is served."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "sruserve"
    version: str = Field(description="Number of its folder; 1 where there are no versions.")
    task: str
    digest: str
    dtype: str
    streams: bool = Field(description="Whether a state can continue it.")
    state_bytes: int = Field(description="Memory of one stream's state.")
    presets: list[str] = Field(description="States that `preset` can begin from.")
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
    """What a probe gets."""

    status: Literal["ok", "draining", "loading", "failed"]
