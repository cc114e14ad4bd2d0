"""The request, reply and error of `/predict`, in text-embeddings-inference's shape."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Inputs = str | list[str] | list[list[str]]


class PredictRequest(BaseModel):
    """One input, or a batch of inputs."""

    model_config = ConfigDict(strict=True, extra="forbid")

    inputs: Inputs = Field(
        description="A text; a pair of texts, for models of task `pair`; a batch: a list of lists "
        "of one or two texts, or, for models of task `classify`, a list of texts."
    )
    raw_scores: bool = Field(
        False, description="Return the network's own scores, before softmax or sigmoid."
    )
    truncate: bool | None = Field(
        False, description="Cut an input that is too long instead of refusing it."
    )
    truncation_direction: Literal["Left", "Right"] = Field(
        "Right", description="The side on which an input is cut."
    )

    @field_validator("inputs", mode="plain", json_schema_input_type=Inputs)
    @classmethod
    def _is_known_shape(cls, value: object) -> object:
        entries = value if isinstance(value, list) else [value]
        texts = all(isinstance(entry, str) for entry in entries)
        if not entries or not (texts or all(map(_is_entry, entries))):
            raise ValueError("send a text, a pair of texts, or a list of lists of one or two texts")
        return value


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


def _is_entry(entry: object) -> bool:
    """Whether it is a list of one or two texts."""
    return (
        isinstance(entry, list)
        and 1 <= len(entry) <= 2
        and all(isinstance(text, str) for text in entry)
    )
