"""The reply of `completions`, in OpenAI's shape, and the events of a streamed one."""

from pydantic import BaseModel, Field

from sruserve.server.http.responses.results import Id, ModelId


class CompletionLogprobs(BaseModel):
    tokens: list[str] = Field(description="Text of each token, those of an echoed prompt first.")
    token_logprobs: list[float | None] = Field(
        description="Natural logarithm of each token's probability; null for a first token "
        "without a predecessor.",
    )
    top_logprobs: list[dict[str, float | None] | None] = Field(
        description="Log-probabilities of the likeliest tokens at each place, by text; null "
        "like `token_logprobs`.",
    )
    text_offset: list[int] = Field(description="Offset of each token in `text`, in characters.")


class Choice(BaseModel):
    index: int = Field(
        description="Number of the completion, from 0: those of the first prompt are first."
    )
    text: str = Field(description="The text, or the part of it in this event.")
    logprobs: CompletionLogprobs | None = Field(
        description="Log-probabilities of the tokens, if the request has `logprobs`; else null."
    )
    finish_reason: str | None = Field(
        description="`stop`: at a stop string or the end of a constraint; `length`: at "
        "`max_tokens`; null: the text continues in later events.",
    )
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
    prompt_tokens: int = Field(description="Tokens of the prompts of this request.")
    completion_tokens: int = Field(description="Tokens generated for all completions.")
    total_tokens: int = Field(description="Sum of `prompt_tokens` and `completion_tokens`.")
    prompt_tokens_details: PromptTokensDetails = Field(
        description="Steps that states or presets saved."
    )


class CompletionReply(BaseModel):
    """A completion, or one event of a streamed one."""

    id: Id
    object: str = Field(description="Always `text_completion`.")
    created: int = Field(description="When the reply began, in seconds since 1970.")
    model: ModelId
    choices: list[Choice] = Field(
        description="The completions, or the part of one in this event; empty in an event with "
        "`usage`.",
    )
    usage: CompletionUsage | None = Field(
        None,
        description="Counted tokens; in a stream, only in its last chunk, with "
        "`stream_options.include_usage`.",
    )
