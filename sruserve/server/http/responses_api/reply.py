"""The models of the replies and events of `/v1/responses`: they describe the API."""

from typing import Any, Literal

from pydantic import BaseModel, Field


class OutputText(BaseModel):
    type: Literal["output_text"] = Field(description="Always `output_text`.")
    text: str = Field(description="The text.")
    annotations: list[Any] = Field(description="Always empty.")
    logprobs: list[Any] = Field(description="Always empty.")


class OutputMessage(BaseModel):
    """The generated text as a message."""

    id: str = Field(description="Id of the message.")
    type: Literal["message"] = Field(description="Always `message`.")
    role: Literal["assistant"] = Field(description="Always `assistant`.")
    status: Literal["in_progress", "completed", "incomplete"] = Field(
        description="Status of the message; `incomplete`: the text could continue."
    )
    content: list[OutputText] = Field(description="One text; empty before its first event.")


class InputDetails(BaseModel):
    cached_tokens: int = Field(description="Tokens that the state had read already.")


class OutputDetails(BaseModel):
    reasoning_tokens: int = Field(description="Always 0.")


class ResponseUsage(BaseModel):
    input_tokens: int = Field(
        description="Tokens before the text: those of this request, and those of the state."
    )
    input_tokens_details: InputDetails = Field(description="Tokens that the state saved.")
    output_tokens: int = Field(description="Generated tokens.")
    output_tokens_details: OutputDetails = Field(description="Kinds of generated tokens.")
    total_tokens: int = Field(description="Sum of `input_tokens` and `output_tokens`.")


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens", "draining"] = Field(
        description="Why the text ended: at its length, or because the server stops."
    )


class ResponseFailure(BaseModel):
    code: str = Field(description="Stable name of the error.")
    message: str = Field(description="What was wrong, and what to change.")


class EchoedFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"] = Field(
        description="The type of the request's `text.format`."
    )


class EchoedText(BaseModel):
    format: EchoedFormat = Field(description="The form of the text, without its schema.")


class ResponsesReply(BaseModel):
    """A response, in the shape of OpenAI's Responses API."""

    id: str = Field(
        description="Id of the response: the `previous_response_id` that continues it, unless "
        "`store` is false. It is as long as the state, and the server keeps nothing."
    )
    state_id: str | None = Field(
        None, description="The id that continues, with `stream_options.stable_id`."
    )
    object: Literal["response"] = Field(description="Always `response`.")
    created_at: int = Field(description="When the reply began, in seconds since 1970.")
    status: Literal["in_progress", "completed", "incomplete", "failed"] = Field(
        description="`completed`: the text matches its schema; `incomplete`: it ended at "
        "`max_output_tokens`."
    )
    background: Literal[False] = Field(description="Always false.")
    error: ResponseFailure | None = Field(description="Why the response failed.")
    incomplete_details: IncompleteDetails | None = Field(
        description="Why the response is incomplete."
    )
    instructions: None = Field(description="Not repeated.")
    max_output_tokens: int = Field(description="Most tokens of the text.")
    metadata: dict[str, str] = Field(description="Those of the request.")
    model: str = Field(description="Id of the model that answered.")
    output: list[OutputMessage] = Field(description="The generated text, as one message.")
    parallel_tool_calls: Literal[False] = Field(description="Always false.")
    previous_response_id: None = Field(description="Not repeated.")
    store: bool = Field(description="Whether the id continues the response.")
    temperature: float = Field(description="That of the request.")
    text: EchoedText = Field(description="The form of the text.")
    tool_choice: Literal["none"] = Field(description="Always `none`.")
    tools: list[Any] = Field(description="Always empty.")
    top_p: float = Field(description="That of the request.")
    truncation: Literal["auto", "disabled"] = Field(
        description="That of the request; it has no effect."
    )
    usage: ResponseUsage | None = Field(description="Counted tokens; null before the end.")


class ResponseEvent(BaseModel):
    """An event of a streamed response; the fields depend on its type."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
        "response.failed",
        "error",
    ] = Field(description="The type of the event, which is its name, too.")
    sequence_number: int = Field(description="Number of the event, from 0.")
    response: ResponsesReply | None = Field(None, description="The response so far.")
    item: OutputMessage | None = Field(None, description="The message so far.")
    part: OutputText | None = Field(None, description="The text so far.")
    item_id: str | None = Field(None, description="Id of the message.")
    output_index: int | None = Field(None, description="Always 0.")
    content_index: int | None = Field(None, description="Always 0.")
    delta: str | None = Field(None, description="The next part of the text.")
    text: str | None = Field(None, description="The whole text.")
    logprobs: list[Any] | None = Field(None, description="Always empty.")
    code: str | None = Field(None, description="Stable name of an error.")
    message: str | None = Field(None, description="What was wrong.")
    param: str | None = Field(None, description="The field that caused the error.")
