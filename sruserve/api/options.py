"""The options of calls, as keyword arguments with types."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class InputOptions(TypedDict, total=False):
    """Options of all inputs.

    state: the state that a result returned, or a list with one for each input (None: a new one);
        one state with several inputs forks it.
    preset: a beginning that the model's folder names.
    more: the text continues, so hold back an unfinished word, and return the state.
    return_state: return the state that continues each input.
    priority: of requests that wait, lower numbers get more of each step (-1000 to 1000).
    timeout_ms: the longest wait before the first step, then `DeadlineExceeded`.
    """

    state: str | Sequence[str | None] | None
    preset: str | None
    more: bool
    return_state: bool
    priority: int
    timeout_ms: int | None


class SamplingOptions(TypedDict, total=False):
    """Options of a completion, with OpenAI's names and the server's defaults.

    max_tokens: the most tokens of the text; 16 by default.
    min_tokens: no stop string ends the text before these.
    temperature: 1 by default; 0 takes the likeliest token.
    top_k, top_p, min_p: sample among the likeliest tokens only.
    repetition_penalty, frequency_penalty, presence_penalty: against repeats.
    logit_bias: by token id, what is added to its score.
    allowed_token_ids: the only ones to sample.
    stop: a text or up to 16 texts that end the completion and are no part of it.
    seed: fixes the text.
    logprobs: return log-probabilities, and those of 0 to 20 likeliest tokens.
    echo: put the prompt before the text.
    regex, json_schema: what the whole text matches; they need the extra `grammars`.
    response_format: the same constraints in OpenAI's format.
    priority, timeout_ms: as for inputs.
    """

    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int | str, float]
    allowed_token_ids: Sequence[int]
    stop: str | Sequence[str]
    seed: int
    logprobs: int
    echo: bool
    regex: str
    json_schema: Mapping[str, Any] | bool
    response_format: Mapping[str, Any]
    priority: int
    timeout_ms: int


class PromptOptions(SamplingOptions, total=False):
    """Options of a completion, and what it continues.

    state, preset: as for inputs.
    return_state: return the state that continues the text. A character that is not whole at its
        end, and text that a `stop` string may begin with, are then in the state, and not in the
        text.
    """

    state: str | Sequence[str | None] | None
    preset: str | None
    return_state: bool
