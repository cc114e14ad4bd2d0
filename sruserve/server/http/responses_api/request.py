"""The request of `/v1/responses`: OpenAI's fields, those that are refused, and ours."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from sruserve.server.http.responses_api.items import InputText
from sruserve.server.http.responses_api.response_id import state_in
from sruserve.server.tasks.completion_request import CompletionRequest, Schema
from sruserve.server.tasks.requests import ModelRequest, Request, explained

DEFAULT_MAX_OUTPUT_TOKENS = 256
_MAX_METADATA = 16
_OF_COMPLETIONS = CompletionRequest.model_fields


def _drop(_: Any) -> None:
    """Drop the value of an ignored field, which may be long."""


def _refuse_set(value: Any, info: ValidationInfo) -> None:
    """Refuse a field that would change the reply, unless its value asks for nothing."""
    if isinstance(value, dict):
        value = [each for each in value.values() if each is not None]
    if value:
        raise _unsupported(str(info.field_name))


def _refuse_verbosity(value: Any) -> None:
    if value is not None:
        raise _unsupported("text.verbosity")


def _unsupported(name: str) -> PydanticCustomError:
    return explained(f"'{name}' is not supported by this server's language models: leave it out")


def _check_choice(value: Any) -> None:
    if value not in (None, "none", "auto"):
        raise explained("'tool_choice' must be 'none' or 'auto': there are no tools")


def _check_entries(value: Any) -> Any:
    """Check the number of entries first: validating millions would block the event loop."""
    if isinstance(value, dict) and len(value) > _MAX_METADATA:
        raise explained(f"'metadata' may have at most {_MAX_METADATA} entries")
    return value


_Ignored = Annotated[Any, AfterValidator(_drop), Field(description="Ignored.")]
_Refused = Annotated[Any, AfterValidator(_refuse_set), Field(description="Not supported.")]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    BeforeValidator(_check_entries),
]


Format = Literal["text", "json_object", "json_schema"]


class TextFormat(BaseModel):
    """OpenAI's option for JSON output."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: Format = Field(
        description="`text`: no constraint; `json_object`: any JSON object; `json_schema`: the "
        "schema below."
    )
    json_schema: Schema | None = Field(None, alias="schema", description="A JSON schema.")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError(
                "the type 'json_schema' needs the field 'schema', and no other type has it"
            )
        return self


class TextOptions(BaseModel):
    """OpenAI's options of the text."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: TextFormat | None = Field(None, description="The form of the text.")
    verbosity: Annotated[
        Any, AfterValidator(_refuse_verbosity), Field(description="Not supported.")
    ] = None


class ResponseStreamOptions(BaseModel):
    """OpenAI's options of an event stream, and one more."""

    model_config = ConfigDict(strict=True, extra="ignore")

    stable_id: bool = Field(
        False,
        description="All events have the same short id; the last one has the id that continues in "
        "`state_id`.",
    )


class ResponsesRequest(ModelRequest):
    """A text to continue, in the shape of OpenAI's Responses API."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"input": "ROMEO:", "max_output_tokens": 200, "seed": 7, "store": True}]
        }
    )

    input: InputText = ""
    instructions: str | None = Field(
        None, description="A text before the input, on a line of its own."
    )
    previous_response_id: Annotated[str, AfterValidator(state_in)] | None = Field(
        None, description="Id of the response to continue: it is the state after its text."
    )
    store: bool | None = Field(
        True, description="False: the id of the response is short, and cannot be continued."
    )
    stream: bool | None = Field(False, description="Answer with server-sent events.")
    stream_options: ResponseStreamOptions | None = Field(
        None, description="Options of an event stream."
    )
    max_output_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        None, description=f"Most tokens to generate; {DEFAULT_MAX_OUTPUT_TOKENS} by default."
    )
    temperature: float | None = Field(1.0, ge=0, le=10, description="0 takes the likeliest token.")
    top_p: float | None = Field(
        1.0,
        gt=0,
        le=1,
        description="Sample among the likeliest tokens with this total probability.",
    )
    seed: int | None = Field(None, description=_OF_COMPLETIONS["seed"].description)
    text: TextOptions | None = Field(None, description="The form of the text, such as JSON.")
    metadata: Metadata | None = Field(None, description="Returned with the response.")
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="No effect: there is no context window."
    )
    priority: int = Field(
        0, ge=-1000, le=1000, description=Request.model_fields["priority"].description
    )
    timeout_ms: Annotated[int, Field(ge=1, le=2**31)] | None = Field(
        None, description=Request.model_fields["timeout_ms"].description
    )

    background: _Refused = None
    context_management: _Refused = None
    conversation: _Refused = None
    include: _Refused = None
    moderation: _Refused = None
    prompt: _Refused = None
    reasoning: _Refused = None
    tools: _Refused = None
    top_logprobs: _Refused = None
    tool_choice: Annotated[
        Any, AfterValidator(_check_choice), Field(description="`none` or `auto`: no tools.")
    ] = None
    max_tool_calls: _Ignored = None
    parallel_tool_calls: _Ignored = None
    prompt_cache_key: _Ignored = None
    prompt_cache_options: _Ignored = None
    prompt_cache_retention: _Ignored = None
    safety_identifier: _Ignored = None
    service_tier: _Ignored = None
    user: _Ignored = None

    @property
    def stores(self) -> bool:
        """Whether the id of the response continues it."""
        return self.store is not False

    @property
    def stable_id(self) -> bool:
        """Whether the id of a streamed response is the same in all events."""
        return bool(self.stream and self.stream_options and self.stream_options.stable_id)

    @property
    def token_limit(self) -> int:
        """The limit of tokens of the response."""
        limit = self.max_output_tokens
        return DEFAULT_MAX_OUTPUT_TOKENS if limit is None else limit

    @property
    def format(self) -> Format:
        """The type of the text's form."""
        form = self.text and self.text.format
        return form.type if form else "text"

    def completion(self) -> CompletionRequest:
        """The same as a completion."""
        prompt = self.input
        if self.instructions:
            prompt = f"{self.instructions}\n{prompt}"
        schema: Schema | None = None
        if self.format != "text":
            schema = {"type": "object"}
            if self.text and self.text.format and self.text.format.json_schema is not None:
                schema = self.text.format.json_schema
        return CompletionRequest(
            model=self.model,
            state=self.previous_response_id,
            priority=self.priority,
            timeout_ms=self.timeout_ms,
            return_state=self.stores,
            prompt=prompt,
            max_tokens=self.token_limit,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            stream=self.stream,
            json_schema=schema,
        )

    def drop_read_fields(self) -> None:
        """Drop long fields that the completion has, too: the reply does not need them."""
        self.text = TextOptions.model_construct(format=TextFormat.model_construct(type=self.format))
        self.input, self.instructions, self.previous_response_id = "", None, None
