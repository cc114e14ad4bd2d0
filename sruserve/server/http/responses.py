"""The models of all replies: they describe the API, and tests validate replies against them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

_Id = Annotated[str, Field(description="Id of the reply.")]
_State = Annotated[
    str | None,
    Field(
        description="State that continues the input, if the request has `return_state` or `more`; "
        "else null."
    ),
]
_Model = Annotated[str, Field(description="Id of the model that answered.")]


class Classification(BaseModel):
    """The classification of one input; nulls until the first word is complete."""

    label: str | None = Field(description="The likeliest label.")
    score: float | None = Field(description="Probability of `label`.")
    scores: dict[str, float] | None = Field(
        description="Probability of each label; they add up to 1."
    )
    state: _State


class Steps(BaseModel):
    steps: int = Field(description="Number of computed tokens or feature rows.")


class ResultsReply(BaseModel):
    """The results of a task."""

    id: _Id
    model: _Model
    results: list[dict[str, Any]] = Field(
        description="One entry for each input, in their order, with the fields of the task."
    )
    usage: Steps = Field(description="What the request computed.")


class ClassifyReply(BaseModel):
    id: _Id
    model: _Model
    results: list[Classification] = Field(description="One entry for each input, in their order.")
    usage: Steps = Field(description="What the request computed.")


class Answer(BaseModel):
    """A span of the context."""

    text: str = Field(description="The span; words sent as a list are joined by spaces.")
    start: int = Field(
        description="Offset of its first character in the context; index of its first word, for a "
        "list of words."
    )
    end: int = Field(description="Offset of the character, or index of the word, after it.")
    score: float = Field(
        description="Product of the probabilities that the answer begins, and ends, there."
    )


class Answers(BaseModel):
    """The answers to one question."""

    answers: list[Answer] = Field(
        description="The best spans first: `n_best`, or as many as the context has."
    )


class AnswerReply(BaseModel):
    id: _Id
    model: _Model
    results: list[Answers] = Field(description="One entry for each question, in their order.")
    usage: Steps = Field(description="What the request computed: the words of all pairs.")


class Tag(BaseModel):
    """One step: a token of a text, or the step at `index` of ids or features."""

    text: str | None = Field(
        None, description="The token's part of the input; null for ids and features."
    )
    index: int | None = Field(None, description="Index of the step, for ids and features.")
    label: str = Field(description="The likeliest label of the step.")
    score: float = Field(description="Probability of `label`.")
    start: int | None = Field(
        None,
        description="Offset in characters of this request's `input`; negative for a word that was "
        "held back from the last chunk, or a label that was pending.",
    )
    end: int | None = Field(
        None, description="Offset of the character after the token; null for ids and features."
    )


class Span(BaseModel):
    """Consecutive steps with one label."""

    label: str = Field(description="Without B- or I-; empty if the labels are only B and I.")
    text: str | None = Field(None, description="The part of the span in this request.")
    start: int = Field(description="Offset of a character, or index of a step, as for tokens.")
    end: int = Field(description="Offset of the character, or index of the step, after the span.")
    score: float = Field(description="Mean of its tokens' scores.")
    continued: bool = Field(description="Whether it continues the last span of the chunk before.")


class Tagging(BaseModel):
    """The labels of one input."""

    tokens: list[Tag] = Field(
        description="The steps of the input, in order; for a model with a CRF, those whose labels "
        "have become final, which may be of earlier chunks."
    )
    spans: list[Span] = Field(description="The spans that the labels mark, in order.")
    pending: int | None = Field(
        None,
        description="Only for a model with a CRF: the number of steps so far whose labels later "
        "chunks may change; 0 without `more`.",
    )
    state: _State


class TagReply(BaseModel):
    id: _Id
    model: _Model
    results: list[Tagging] = Field(description="One entry for each input, in their order.")
    usage: Steps = Field(description="What the request computed.")


Values = Annotated[
    dict[str, float | dict[str, float]],
    Field(description="Each value by its name; with quantiles, each quantile by its text."),
]


class Regression(BaseModel):
    """The values that one input predicts."""

    values: Values | None = Field(
        description="The values after the last step; null before the first."
    )
    steps: list[Values] | None = Field(
        description="The values after each step, if the model predicts at every step; else null."
    )
    ahead: list[Values] | None = Field(
        description="The values of the future steps, if the request has `steps_ahead`; else null."
    )
    state: _State


class RegressReply(BaseModel):
    id: _Id
    model: _Model
    results: list[Regression] = Field(description="One entry for each input, in their order.")
    usage: Steps = Field(description="What the request computed.")


class Encoding(BaseModel):
    """The outputs of a network for one input."""

    outputs: list[list[float | None]] = Field(
        description="Steps x features; null for a value that is not finite."
    )
    state: _State


class EncodeReply(BaseModel):
    id: _Id
    model: _Model
    results: list[Encoding] = Field(description="One entry for each input, in their order.")
    usage: Steps = Field(description="What the request computed.")


class Embedding(BaseModel):
    """The vector of one input."""

    object: str = Field(description="Always `embedding`.")
    index: int = Field(description="Number of the input, from 0.")
    embedding: list[float] | str | None = Field(
        description="The vector: numbers, or the base64 of little-endian float32 numbers; null "
        "until the first word of a chunk with `more` is complete."
    )
    state: str | None = Field(
        None, description="State that continues the input, if the request wants one."
    )


class EmbeddingUsage(BaseModel):
    prompt_tokens: int = Field(description="Number of computed tokens or feature rows.")
    total_tokens: int = Field(description="The same number.")


class EmbeddingReply(BaseModel):
    object: str = Field(description="Always `list`.")
    data: list[Embedding] = Field(description="One entry for each input, in their order.")
    model: _Model
    usage: EmbeddingUsage = Field(description="What the request computed.")


class Score(BaseModel):
    """The likelihood of one input; nulls if no token has a predecessor."""

    log_likelihood: float | None = Field(description="In nats; null if it is not finite.")
    bits_per_character: float | None = Field(
        description="Negative log-likelihood in bits, divided by `characters`."
    )
    bits_per_token: float | None = Field(
        description="Negative log-likelihood in bits, divided by `tokens`."
    )
    characters: int = Field(description="Number of characters of the scored tokens.")
    tokens: int = Field(description="Number of scored tokens: all that have a predecessor.")
    state: _State


class ScoreReply(BaseModel):
    id: _Id
    model: _Model
    results: list[Score] = Field(description="One entry for each input, in their order.")
    usage: Steps = Field(description="What the request computed.")


class Alignment(BaseModel):
    """The weights by which each token of a translation attends to those of its text."""

    source: list[str] = Field(description="The tokens of the text, with those around it.")
    target: list[str] = Field(description="The tokens of the translation.")
    weights: list[list[float]] = Field(
        description="A row for each token of the translation: its shares of the text's tokens."
    )


_Scored = Annotated[
    float | None,
    Field(description="What translations of a text are ranked by, with `scores`; else null."),
]
_LogProbability = Annotated[
    float | None,
    Field(description="Of all tokens, with the one that ends it, in nats, with `scores`."),
]
_TokenIds = Annotated[
    list[int] | None, Field(description="For models without a vocabulary; else null.")
]


class TranslationChoice(BaseModel):
    """One translation of a text."""

    text: str | None = Field(
        description="The translation, or what is new of one by `wait_k`; null without a vocabulary."
    )
    token_ids: _TokenIds
    finish_reason: str | None = Field(
        description="`stop`: the translation has ended; `length`: at `max_tokens`; null: it goes "
        "on with more of its text."
    )
    score: _Scored
    log_probability: _LogProbability
    alignment: Alignment | None = Field(description="With `attention`; else null.")


class TranslationResult(TranslationChoice):
    """The best translation of a text, and the next ones."""

    alternatives: list[TranslationChoice] = Field(
        description="The translations after the best one, up to `n_best`, the better ones first."
    )
    state: str | None = Field(
        None, description="With `more`: the state that continues the text; else null."
    )


class TranslateReply(BaseModel):
    id: _Id
    model: _Model
    results: list[TranslationResult] = Field(description="One entry for each text, in their order.")
    usage: Steps = Field(description="Tokens of the texts, and steps of all hypotheses.")


class TranslationPart(BaseModel):
    """The next part of a streamed translation."""

    index: int = Field(description="Number of the text, from 0.")
    text: str | None = Field(description="What is new of the translation.")
    token_ids: _TokenIds
    finish_reason: str | None = Field(
        description="Why the translation has ended; null: it continues in later events, or with "
        "more of its text."
    )
    score: _Scored
    log_probability: _LogProbability
    state: str | None = Field(
        None, description="In the last event, with `more`: the state that continues the text."
    )


class TranslateEvent(BaseModel):
    """One event of a stream of translations."""

    id: _Id
    model: _Model
    results: list[TranslationPart] = Field(
        description="The part of one translation; in the last event, an entry with a `state` for "
        "each text that continues."
    )
    usage: Steps | None = Field(None, description="In the last event.")


class TokenizeReply(BaseModel):
    count: int = Field(description="Number of ids.")
    max_model_len: int | None = Field(
        description="The most ids that the model reads of a text; null: it reads texts of any "
        "length."
    )
    tokens: list[int] = Field(description="The ids.")
    token_strs: list[str] | None = Field(
        description="The text of each id, if the request has `return_token_strs`; else null."
    )


class DetokenizeReply(BaseModel):
    prompt: str = Field(description="The text.")


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

    id: _Id
    object: str = Field(description="Always `text_completion`.")
    created: int = Field(description="When the reply began, in seconds since 1970.")
    model: _Model
    choices: list[Choice] = Field(
        description="The completions, or the part of one in this event; empty in an event with "
        "`usage`.",
    )
    usage: CompletionUsage | None = Field(
        None,
        description="Counted tokens; in a stream, only in its last chunk, with "
        "`stream_options.include_usage`.",
    )


class ErrorBody(BaseModel):
    message: str = Field(description="What was wrong, and what to change.")
    type: str = Field(
        description="Kind of the error, as OpenAI names it, such as `invalid_request_error`."
    )
    param: str | None = Field(
        description="The field of the request that caused the error, if it was one."
    )
    code: str = Field(description="Stable name of the error, for programs.")


class ErrorReply(BaseModel):
    error: ErrorBody = Field(description="The error.")


class OutputInfo(BaseModel):
    """A value that a model predicts."""

    name: str = Field(description="Name of the value.")
    unit: str = Field(description="Its unit; empty if none is known.")
    quantiles: list[float] = Field(
        description="Quantiles that are predicted; empty: the value itself."
    )


class ModelInfo(BaseModel):
    """A served model, or an older version of it."""

    id: str = Field(
        description="Id for the field `model` of requests: the name of the model, or "
        "`NAME@VERSION` of a version."
    )
    object: str = Field("model", description="Always `model`.")
    created: int = Field(description="When the server started, in seconds since 1970.")
    owned_by: str = Field("sruserve", description="Always `sruserve`.")
    version: str = Field(description="Number of the version folder; 1 if there are no versions.")
    task: str = Field(
        description="Task of the model: `classify`, `pair`, `tag`, `regress`, `answer`, `encode`, "
        "`generate` or `translate`."
    )
    description: str = Field(
        description="What the model does, as `config.json` says; plain text of at most 300 "
        "characters, empty without one."
    )
    digest: str = Field(
        description="SHA-256 of its weights, maths and vocabulary; states are bound to it."
    )
    dtype: str = Field(description="Compute dtype: `float32`, `bfloat16` or `float16`.")
    streams: bool = Field(
        description="Whether an input may arrive in chunks, each of which continues the state of "
        "the one before; for task `translate`, with `wait_k`."
    )
    state_bytes: int = Field(
        description="Bytes of one stream's state; with a CRF, at most; 0 for task `translate`, "
        "whose states grow with their texts."
    )
    presets: list[str] = Field(description="Names that `preset` accepts.")
    labels: list[str] = Field(
        description="Names of its classes, in the order of their ids; empty without classes."
    )
    outputs: list[OutputInfo] = Field(
        description="The values of a model of task `regress`, in order; else empty."
    )
    vocab_size: int | None = Field(
        description="Number of its token ids; null for a model that takes features."
    )


class ModelList(BaseModel):
    object: str = Field("list", description="Always `list`.")
    data: list[ModelInfo] = Field(description="The served models.")


class StateEntry(BaseModel):
    """One tensor of a state."""

    name: str = Field(
        description="Name of the tensor: the number of its layer, a dot, and its name there, such "
        "as `0.c`."
    )
    size: int = Field(description="How many numbers it has.")
    min: float = Field(description="The smallest of them.")
    max: float = Field(description="The largest of them.")
    mean: float = Field(description="Their mean.")
    values: list[float] = Field(
        description="Evenly spaced numbers of it, in their order: at most `values` of the request."
    )


class StateReply(BaseModel):
    """What a state token contains, without its texts and the key of its sampler."""

    model: _Model
    version: str = Field(description="Version of the model whose weights the state belongs to.")
    steps: int = Field(description="Tokens or feature rows that the state has read.")
    state_bytes: int = Field(description="Bytes of the state's numbers.")
    expires_at: int | None = Field(
        description="When the token expires, in seconds since 1970; null: never."
    )
    entries: list[StateEntry] = Field(description="The tensors of the state, in their order.")


class Prediction(BaseModel):
    """A label in text-embeddings-inference's shape."""

    score: float = Field(description="Probability of the label.")
    label: str = Field(description="A label of the model.")


class PredictError(BaseModel):
    """An error in text-embeddings-inference's shape."""

    error: str = Field(description="What was wrong, and what to change.")
    error_type: Literal[
        "empty", "tokenizer", "validation", "overloaded", "unhealthy", "backend"
    ] = Field(description="Kind of the error, as text-embeddings-inference names it.")


class Status(BaseModel):
    """The reply to a probe."""

    status: Literal["ok", "draining", "loading", "failed"] = Field(
        description="`ok`, or why the server is not ready."
    )
