"""What clients get: the models that describe replies, and that tests hold them to."""

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
    top_logprobs: list[dict[str, float | None]]
    text_offset: list[int]


class Choice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | None = Field(None, description="The stop string that ended the text.")
    state: str | None = None
    token_ids: list[int] | None = Field(None, description="For models without a vocabulary.")


class CompletionUsage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


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


class ServedModel(BaseModel):
    """A model that is served."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "sruserve"
    task: str
    digest: str
    dtype: str
    streams: bool = Field(description="Whether a state can continue it.")
    state_bytes: int = Field(description="Memory of one stream's state.")
    labels: list[str]
    vocab_size: int | None


class ModelList(BaseModel):
    object: str = "list"
    data: list[ServedModel]
