"""The request of `/v1/completions`: OpenAI's fields, and ours."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from sruserve.server.tasks.requests import INPUT, Input, Listed, Request

DEFAULT_MAX_TOKENS = 16
# JSON's integers are unbounded, the engine's are not. Only seeds may have any length.
_Count = Annotated[int, Field(ge=0, le=2**31 - 1)]

MAX_BIASES = 1024


def _check_biases(biases: Any) -> Any:
    """Check the number of entries first: validating millions would block the event loop."""
    if isinstance(biases, dict) and len(biases) > MAX_BIASES:
        raise ValueError(f"may have at most {MAX_BIASES} entries")
    return biases


def _drop(_: Any) -> None:
    """Drop the value of an ignored field, which may be long."""


_Ignored = Annotated[Any, AfterValidator(_drop)]
_TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
_Bias = Annotated[float, Field(ge=-100, le=100)]
LogitBias = Annotated[
    dict[_TokenId, _Bias], Field(max_length=MAX_BIASES), BeforeValidator(_check_biases)
]
Schema = dict[str, Any] | bool
StopText = Annotated[str, Field(min_length=1, max_length=256)]


class StreamOptions(BaseModel):
    """OpenAI's options of an event stream, and one more."""

    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool = Field(False, description="End with a chunk that has `usage`.")
    state_interval: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = Field(
        None,
        description="Return a state each time after about this number of characters (for a model "
        "without a vocabulary: tokens). It continues after the text up to its chunk.",
    )


class NamedSchema(BaseModel):
    """OpenAI's frame around a schema."""

    model_config = ConfigDict(strict=True, extra="ignore")

    json_schema: Schema = Field(alias="schema", description="A JSON schema.")


class ResponseFormat(BaseModel):
    """OpenAI's option for JSON output."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["text", "json_object", "json_schema"] = Field(
        description="`text`: no constraint; `json_object`: any JSON object; `json_schema`: the "
        "schema below.",
    )
    json_schema: NamedSchema | None = Field(None, description="For the type of that name.")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError(
                "the type 'json_schema' needs the field 'json_schema', and no other type has it"
            )
        return self


class CompletionRequest(Request):
    """A prompt to complete, in OpenAI's shape. `state` continues an earlier completion."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt": "ROMEO:", "max_tokens": 200, "seed": 7}]}
    )

    prompt: Input = Field(
        "",
        description=INPUT + " May be empty if there is a `state`. Its last word is taken as "
        "finished; `/v1/score` with `more` reads a prompt whose words are cut.",
    )
    max_tokens: _Count | None = Field(
        DEFAULT_MAX_TOKENS, description="Most tokens to generate for each completion."
    )
    min_tokens: _Count = Field(0, description="No stop string ends the text before these.")
    temperature: float | None = Field(1.0, ge=0, le=10, description="0 takes the likeliest token.")
    top_k: _Count = Field(0, description="Sample among this number of likeliest tokens; 0: all.")
    top_p: float | None = Field(
        1.0,
        gt=0,
        le=1,
        description="Sample among the likeliest tokens with this total probability.",
    )
    min_p: float = Field(
        0.0, ge=0, le=1, description="Drop tokens below that share of the likeliest one."
    )
    repetition_penalty: float = Field(1.0, ge=0.1, le=10, description="Over 1 discourages repeats.")
    frequency_penalty: float | None = Field(
        0.0, ge=-2, le=2, description="Subtracted from a token's score for each recent occurrence."
    )
    presence_penalty: float | None = Field(
        0.0, ge=-2, le=2, description="Subtracted from the score of each recent token."
    )
    logit_bias: LogitBias | None = Field(
        None, description="Biases of token ids, added to their scores; -100 bans one."
    )
    allowed_token_ids: Listed[_Count] | None = Field(
        None, min_length=1, description="The only token ids to sample."
    )
    n: int | None = Field(1, ge=1, le=128, description="Completions for each prompt.")
    stop: StopText | Annotated[Listed[StopText], Field(max_length=16)] | None = Field(
        None, description="Texts that end the completion; they are not part of it."
    )
    seed: int | None = Field(
        None, description="Fixes the text. Unset: the state's own seed, or a random one."
    )
    logprobs: int | None = Field(
        None,
        ge=0,
        le=20,
        description="Return log-probabilities, and those of this number of likeliest tokens.",
    )
    echo: bool | None = Field(
        False, description="Put the prompt before the text, and before its log-probabilities."
    )
    return_token_ids: bool = Field(False, description="Return the token ids of the text.")
    stream: bool | None = Field(False, description="Answer with server-sent events.")
    stream_options: StreamOptions | None = Field(
        None, description="Options of an event stream; only with `stream`."
    )
    regex: str | None = Field(
        None, description="The text matches this regular expression as a whole."
    )
    json_schema: Schema | None = Field(None, description="The text is JSON of this schema.")
    response_format: ResponseFormat | None = Field(
        None, description="The same as `json_schema`, in the form of OpenAI's chat completions."
    )

    suffix: str | None = Field(None, description="Not supported.")
    best_of: _Count | None = Field(None, description="Not supported unless equal to `n`.")
    ignore_eos: bool | None = Field(None, description="Ignored: no token ends a text here.")
    user: _Ignored = Field(None, description="Ignored.")
    metadata: _Ignored = Field(None, description="Ignored.")
    service_tier: _Ignored = Field(None, description="Ignored.")
    safety_identifier: _Ignored = Field(None, description="Ignored.")

    def drop_read_fields(self) -> None:
        """Drop long fields that have been read: the reply does not need them."""
        self.prompt, self.state, self.allowed_token_ids = "", None, None
        self.regex = self.json_schema = self.response_format = None

    @property
    def token_limit(self) -> int:
        """The limit of tokens of one completion; null: OpenAI's default."""
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def echoes_logprobs(self) -> bool:
        """Whether the reply has log-probabilities of the prompt."""
        return bool(self.echo) and self.logprobs is not None

    @property
    def state_interval(self) -> int:
        """Characters between two states of a stream; 0: only the last one is returned, if any."""
        return (self.stream_options and self.stream_options.state_interval) or 0

    @property
    def state_wanted_by(self) -> str | None:
        return super().state_wanted_by or ("stream_options" if self.state_interval else None)

    @property
    def schema_of_format(self) -> Schema | None:
        """The JSON schema in `response_format`, if any."""
        form = self.response_format
        if form is None or form.type == "text":
            return None
        return {"type": "object"} if form.json_schema is None else form.json_schema.json_schema

    @field_validator("suffix", mode="after")
    @classmethod
    def _is_unset(cls, value: Any) -> Any:
        if value:
            raise ValueError("not supported by this server; leave it out")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError("'best_of' is not supported; leave it out or make it equal to 'n'")
        if self.stream_options is not None and not self.stream:
            raise ValueError("'stream_options' needs 'stream': true")
        if self.min_tokens > self.token_limit:
            raise ValueError(f"'min_tokens' must be at most 'max_tokens', {self.token_limit}")
        constraints = (self.regex, self.json_schema, self.schema_of_format)
        if sum(constraint is not None for constraint in constraints) > 1:
            raise ValueError("send only one of 'regex', 'json_schema' and 'response_format'")
        return self
