"""The reply of `translate`, and the events of a streamed one."""

from typing import Annotated

from pydantic import BaseModel, Field

from sruserve.server.http.responses.results import Id, ModelId, Steps


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
    id: Id
    model: ModelId
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

    id: Id
    model: ModelId
    results: list[TranslationPart] = Field(
        description="The part of one translation; in the last event, an entry with a `state` for "
        "each text that continues."
    )
    usage: Steps | None = Field(None, description="In the last event.")
