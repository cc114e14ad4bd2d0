"""What the API returns: frozen values, each with the fields of the server's reply."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

_SHOWN = 4  # entries of a long field in a repr
_LONG_TEXT = 60  # characters

Values = Mapping[str, float | Mapping[str, float]]
"""Predicted values by name; those of quantiles by name and quantile."""


class _Readable:
    """A short repr: numbers of four digits, long fields cut, a state by its size."""

    def __repr__(self) -> str:
        shown = [
            f"{field.name}={_show(field.name, value)}"
            for field in fields(self)  # type: ignore[arg-type]
            if (value := getattr(self, field.name)) is not None
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Self:
        """The value of a result in plain values."""
        return cls(**described)


@dataclass(frozen=True, slots=True, repr=False)
class Classification(_Readable):
    """The likeliest label of an input.

    label: None if a chunk of a stream had no step.
    score: of the label; its probability, or the network's own score with `raw_scores`.
    scores: of all labels.
    state: the token that continues the input, if it was requested.
    """

    label: str | None
    score: float | None
    scores: Mapping[str, float] | None
    state: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class TaggedToken(_Readable):
    """One step and its label.

    text, start, end: its text, and its first and last character (exclusive) in the input.
    index: of the step, in an input of ids or features, which has no text.
    """

    label: str
    score: float
    text: str | None = None
    start: int | None = None
    end: int | None = None
    index: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Span(_Readable):
    """Steps that belong together: characters `start` to `end` of a text, or these steps.

    score: the mean of theirs.
    continued: it continues the last span of the chunk before.
    """

    label: str
    start: int
    end: int
    score: float
    continued: bool
    text: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Tagging(_Readable):
    """The labels of an input's steps, and the spans that they mark.

    pending: with a CRF, the number of steps whose labels are not final yet.
    """

    tokens: Sequence[TaggedToken]
    spans: Sequence[Span]
    pending: int | None = None
    state: str | None = None

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Self:
        tokens = tuple(TaggedToken.of(token) for token in described["tokens"])
        spans = tuple(Span.of(span) for span in described["spans"])
        return cls(tokens, spans, described.get("pending"), described["state"])


@dataclass(frozen=True, slots=True, repr=False)
class Answer(_Readable):
    """A span of a context: its characters `start` to `end`, or these words of a list of words.

    score: the product of the probabilities that an answer begins, and ends, there.
    """

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True, slots=True, repr=False)
class Answers(_Readable):
    """The answers to a question, the best one first."""

    answers: Sequence[Answer]

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Self:
        return cls(tuple(Answer.of(answer) for answer in described["answers"]))

    @property
    def best(self) -> Answer:
        """The answer with the highest score."""
        return self.answers[0]


@dataclass(frozen=True, slots=True, repr=False)
class Regression(_Readable):
    """Predicted values: after the input, at each of its steps, and of the steps ahead."""

    values: Values | None
    steps: Sequence[Values] | None = None
    ahead: Sequence[Values] | None = None
    state: str | None = None


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Encoding(_Readable):
    """The network's output of each step: (steps, width), float32."""

    outputs: NDArray[np.float32]
    state: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Score(_Readable):
    """The likelihood of a text, in nats, and in bits for each character and each token.

    bits_per_character, bits_per_token: None if no token has a likelihood.
    tokens: those with a predecessor, which have a likelihood.
    """

    log_likelihood: float
    bits_per_character: float | None
    bits_per_token: float | None
    characters: int
    tokens: int
    state: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Completion(_Readable):
    """A whole completion.

    finish_reason: `stop` or `length`; None: it was closed before its end.
    stop_reason: the stop string that ended it, if one did.
    token_ids: of the text (with `echo`, also of the prompt).
    logprobs: OpenAI's lists, if they were requested.
    state: the token that continues the text, with `return_state`.
    """

    text: str
    finish_reason: str | None
    stop_reason: str | None
    token_ids: Sequence[int]
    logprobs: Mapping[str, Sequence[Any]] | None = None
    state: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Alignment(_Readable):
    """How much each token of a translation attends to the tokens of its text.

    weights: (target tokens, source tokens); each row is that of one token of the translation.
    """

    source: Sequence[str]
    target: Sequence[str]
    weights: Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True, repr=False)
class Translation(_Readable):
    """A translation of a text.

    text: None without a vocabulary. token_ids: without one; else None.
    finish_reason: `stop`, or `length` at `max_tokens`; None: it continues with more of its text.
    score: what the translations of a text are ranked by. log_probability: in nats.
    alignment: with `attention`.
    alternatives: the next translations of the text, the better ones first, up to `n_best`.
    state: with `more`, the token that continues the text.
    """

    text: str | None
    token_ids: Sequence[int] | None
    finish_reason: str | None
    score: float
    log_probability: float
    alignment: Alignment | None = None
    alternatives: Sequence["Translation"] = ()
    state: str | None = None

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Self:
        others = tuple(cls.of(each) for each in described.get("alternatives", ()))
        alignment = described["alignment"]
        if alignment is not None:
            alignment = Alignment.of(alignment)
        return cls(**{**described, "alignment": alignment, "alternatives": others})


StreamResult = Classification | Tagging | Regression | Encoding | Score
"""What a stream's chunk returns: the result of its model's task."""


def _show(name: str, value: Any) -> str:
    if name == "state":
        return f"<{len(value):,} characters>"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, np.ndarray):
        return f"<{' x '.join(map(str, value.shape))} {value.dtype}>"
    if isinstance(value, Mapping):
        items = [f"{key!r}: {_show('', each)}" for key, each in list(value.items())[:_SHOWN]]
        return "{" + ", ".join([*items, *(["…"] if len(value) > _SHOWN else [])]) + "}"
    if isinstance(value, (list, tuple)):
        items = [_show("", each) for each in value[:_SHOWN]]
        more = [f"… {len(value) - _SHOWN} more"] if len(value) > _SHOWN else []
        return f"[{', '.join([*items, *more])}]"
    if isinstance(value, str) and len(value) > _LONG_TEXT:
        return f"{value[:_LONG_TEXT]!r}…"
    return repr(value)
