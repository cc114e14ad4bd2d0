"""What clients send to `/v1/completions`: OpenAI's fields, and ours."""

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
# JSON's integers have no end, the engine's do. Seeds alone are taken as long as they are.
_Count = Annotated[int, Field(ge=0, le=2**31 - 1)]

MOST_BIASES = 1024


def _few(given: Any) -> Any:
    """Counted before each is looked at: millions of them would stop the event loop."""
    if isinstance(given, dict) and len(given) > MOST_BIASES:
        raise ValueError(f"may have {MOST_BIASES} entries")
    return given


def _none(_: Any) -> None:
    """What is ignored is not kept, however long it is."""


_Ignored = Annotated[Any, AfterValidator(_none)]
_TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
_Bias = Annotated[float, Field(ge=-100, le=100)]
LogitBias = Annotated[dict[_TokenId, _Bias], Field(max_length=MOST_BIASES), BeforeValidator(_few)]
Schema = dict[str, Any] | bool
StopText = Annotated[str, Field(min_length=1, max_length=256)]


class StreamOptions(BaseModel):
    """OpenAI's options of an event stream, and one more."""

    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool = Field(False, description="End with a chunk that has `usage`.")
    state_interval: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = Field(
        None,
        description="Return a state after about so many characters, too (tokens, of a model "
        "without a vocabulary): it continues right behind the text up to its chunk.",
    )


class NamedSchema(BaseModel):
    """OpenAI's frame around a schema."""

    model_config = ConfigDict(strict=True, extra="ignore")

    json_schema: Schema = Field(alias="schema", description="A JSON schema.")


class ResponseFormat(BaseModel):
    """OpenAI's way to ask for JSON."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["text", "json_object", "json_schema"]
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
    top_k: _Count = Field(0, description="Sample among that many likeliest tokens; 0: all.")
    top_p: float | None = Field(1.0, gt=0, le=1, description="Sample within that much probability.")
    min_p: float = Field(
        0.0, ge=0, le=1, description="Drop tokens below that share of the likeliest one."
    )
    repetition_penalty: float = Field(1.0, ge=0.1, le=10, description="Over 1 discourages repeats.")
    frequency_penalty: float | None = Field(
        0.0, ge=-2, le=2, description="Taken off a token's score for each time it came of late."
    )
    presence_penalty: float | None = Field(
        0.0, ge=-2, le=2, description="Taken off the score of every token that came of late."
    )
    logit_bias: LogitBias | None = Field(
        None, description="What to add to the scores of token ids; -100 bans one."
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
        None, ge=0, le=20, description="Return log-probabilities, and those of so many tokens."
    )
    echo: bool | None = Field(
        False, description="Put the prompt before the text, and before its log-probabilities."
    )
    return_token_ids: bool = Field(False, description="Return the ids behind the text.")
    stream: bool | None = Field(False, description="Answer with server-sent events.")
    stream_options: StreamOptions | None = None
    regex: str | None = Field(
        None, description="The text matches this regular expression as a whole."
    )
    json_schema: Schema | None = Field(None, description="The text is JSON of this schema.")
    response_format: ResponseFormat | None = Field(
        None, description="The same as `json_schema`, as OpenAI's chat completions ask for it."
    )

    suffix: str | None = Field(None, description="Not supported.")
    best_of: _Count | None = Field(None, description="Not supported unless equal to `n`.")
    ignore_eos: bool | None = Field(None, description="Ignored: no token ends a text here.")
    user: _Ignored = Field(None, description="Ignored.")
    metadata: _Ignored = Field(None, description="Ignored.")
    service_tier: _Ignored = Field(None, description="Ignored.")
    safety_identifier: _Ignored = Field(None, description="Ignored.")

    def let_go(self) -> None:
        """Forget what may be long and has been read: no reply needs it."""
        self.prompt, self.state, self.allowed_token_ids = "", None, None
        self.regex = self.json_schema = self.response_format = None

    @property
    def token_limit(self) -> int:
        """Most tokens of one completion; null means OpenAI's default."""
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def echoes_logprobs(self) -> bool:
        """Whether log-probabilities of the prompt are asked for."""
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
        """The JSON schema that `response_format` asks for, if it does."""
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
        if sum(each is not None for each in constraints) > 1:
            raise ValueError("send only one of 'regex', 'json_schema' and 'response_format'")
        return self
