"""What clients send and get: the models that validate hot requests and describe all of them."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

Input = str | list[str] | list[int] | list[list[int]]
State = str | list[str | None]
StopText = Annotated[str, Field(min_length=1, max_length=256)]

_MODEL = "Id of a served model; may be left out when only one of them fits."
_INPUT = "A text, a list of texts, a list of token ids, or a list of such lists."
_STATE = "The state that a reply returned. One state with several inputs forks the stream."
_RETURN = "Return the state that continues each stream."


class Request(BaseModel):
    """What all requests have in common."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: str | None = Field(None, description=_MODEL)
    state: State | None = Field(None, description=_STATE)
    return_state: bool = Field(False, description=_RETURN)


class ClassifyRequest(Request):
    """A text, or the next chunk of a stream, to label."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"input": "How far is it from Denver to Aspen?"},
                {"input": "How far is it ", "more": True},
            ]
        }
    )

    input: Input | None = Field(None, description=_INPUT)
    features: list[list[float]] | None = Field(
        None, description="Steps x features, instead of `input`, for models that take features."
    )
    more: bool = Field(
        False,
        description="More of this text will follow: hold back an unfinished word, and return the "
        "state.",
    )


class ScoreRequest(Request):
    """A text whose likelihood is asked for."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": "To be, or not to be"}]})

    input: Input = Field(description=_INPUT)


class StreamOptions(BaseModel):
    """OpenAI's options of an event stream."""

    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool = Field(False, description="End with a chunk that has `usage`.")


class CompletionRequest(Request):
    """A prompt to complete, in OpenAI's shape. `state` continues an earlier completion."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt": "ROMEO:", "max_tokens": 200, "seed": 7}]}
    )

    prompt: Input = Field("", description=_INPUT + " May be empty if there is a `state`.")
    max_tokens: int | None = Field(16, ge=0, description="Most tokens to generate.")
    min_tokens: int = Field(0, ge=0, description="No stop string ends the text before these.")
    temperature: float | None = Field(1.0, ge=0, le=10, description="0 takes the likeliest token.")
    top_k: int = Field(0, ge=0, description="Sample among that many likeliest tokens; 0: all.")
    top_p: float | None = Field(1.0, gt=0, le=1, description="Sample within that much probability.")
    min_p: float = Field(
        0.0, ge=0, le=1, description="Drop tokens below that share of the likeliest one."
    )
    repetition_penalty: float = Field(1.0, ge=0.1, le=10, description="Over 1 discourages repeats.")
    n: int | None = Field(1, ge=1, le=128, description="Completions for each prompt.")
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = Field(
        None, description="Texts that end the completion; they are not part of it."
    )
    seed: int | None = Field(
        None, description="Fixes the text. Unset: the state's own seed, or a random one."
    )
    logprobs: int | None = Field(
        None, ge=0, le=20, description="Return log-probabilities, and those of so many tokens."
    )
    stream: bool | None = Field(False, description="Answer with server-sent events.")
    stream_options: StreamOptions | None = None

    echo: bool | None = Field(None, description="Not supported.")
    suffix: str | None = Field(None, description="Not supported.")
    logit_bias: dict[str, float] | None = Field(None, description="Not supported.")
    best_of: int | None = Field(None, description="Not supported unless equal to `n`.")
    frequency_penalty: float | None = Field(None, description="Not supported unless 0.")
    presence_penalty: float | None = Field(None, description="Not supported unless 0.")
    user: Any = Field(None, description="Ignored.")
    metadata: Any = Field(None, description="Ignored.")
    service_tier: Any = Field(None, description="Ignored.")
    safety_identifier: Any = Field(None, description="Ignored.")

    @field_validator(
        "echo", "suffix", "logit_bias", "frequency_penalty", "presence_penalty", mode="after"
    )
    @classmethod
    def _is_unset(cls, value: Any, info: ValidationInfo) -> Any:
        if value:
            hint = "use repetition_penalty" if "penalty" in str(info.field_name) else "leave it out"
            raise ValueError(f"not supported by this server; {hint}")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError("'best_of' is not supported; leave it out or make it equal to 'n'")
        if self.stream_options is not None and not self.stream:
            raise ValueError("'stream_options' needs 'stream': true")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError("'min_tokens' must not be over 'max_tokens'")
        return self


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
