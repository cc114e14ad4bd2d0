"""The schemas of requests, which validate and document them."""

from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

T = TypeVar("T")
# Validation of a list stops at its first error: millions of them would block the event loop.
Listed = Annotated[list[T], Field(fail_fast=True)]
Input = str | Listed[str] | Listed[int] | Listed[Listed[int]]
Texts = str | Listed[str] | Listed[Listed[str]]
State = str | Listed[str | None]

INPUT_SHAPES = "a text, a list of texts, a list of token ids, or a list of such lists"
INPUT = f"{INPUT_SHAPES.capitalize()}."

MAX_ANSWERS = 128  # to one question

EXPLAINED = "explained"  # the type of errors whose message is for the client as it is

MODEL = "Id of a served model; may be left out when only one, or one default model, fits."
_STATE = "The state that a reply returned. One state with several inputs forks the stream."
_PRESET = "Name of a preset of the model: begin from its state instead of from nothing."
_DOCUMENT = "Name of a preset of the model: the document that all questions are about."
_RETURN = "Return the state that continues each stream."
_MORE = (
    "More of this text will follow: hold back an unfinished word, and return the state that "
    "continues it."
)


def explained(message: str) -> PydanticCustomError:
    """An error for a validator to raise, whose message names the field and is sent as it is."""
    return PydanticCustomError(EXPLAINED, "{message}", {"message": message})


class ModelRequest(BaseModel):
    """A request to a model."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: str | None = Field(None, description=MODEL)


class Request(ModelRequest):
    """The common fields of all requests that models compute."""

    state: State | None = Field(None, description=_STATE)
    preset: str | None = Field(None, description=_PRESET)
    priority: int = Field(
        0,
        ge=-1000,
        le=1000,
        description="Of a tenant's requests that wait, lower numbers get more of each step.",
    )
    timeout_ms: Annotated[int, Field(ge=1, le=2**31)] | None = Field(
        None, description="Longest wait before the first step; then 504 `deadline_exceeded`."
    )
    return_state: bool = Field(False, description=_RETURN)

    @model_validator(mode="after")
    def _begins_once(self) -> Self:
        if self.state is not None and self.preset is not None:
            raise ValueError("send either 'state' or 'preset', not both")
        return self

    @property
    def begun_by(self) -> str | None:
        """The name of the field with the start state, if any."""
        return "state" if self.state is not None else "preset" if self.preset is not None else None

    @property
    def state_wanted_by(self) -> str | None:
        """The name of the field that requests a state in the reply, if any."""
        return "return_state" if self.return_state else None


class ChunkRequest(Request):
    """Texts, or the next chunks of them."""

    input: Input | None = Field(None, description=INPUT)
    more: bool = Field(False, description=_MORE)

    @property
    def state_wanted_by(self) -> str | None:
        return "return_state" if self.return_state else "more" if self.more else None


class SequenceRequest(ChunkRequest):
    """Texts or features, or the next chunks of them."""

    features: Listed[Listed[float]] | Listed[Listed[Listed[float]]] | None = Field(
        None,
        description="Steps x features, instead of `input`, for models that take features; or a "
        "list of such sequences, whose lengths may differ.",
    )


class ClassifyRequest(SequenceRequest):
    """A text, or the next chunk of a stream, or a pair of texts, to label."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"input": "How far is it from Denver to Aspen?"},
                {"input": "How far is it ", "more": True},
                {"input": "A man plays a guitar.", "pair": "Someone makes music."},
            ]
        }
    )

    raw_scores: bool = Field(
        False,
        description="Return the network's own scores, before softmax or sigmoid; null if this "
        "chunk had no step.",
    )
    pair: Input | None = Field(
        None,
        description="For models of task `pair`: what each `input` is compared with, in the same "
        "shape and number.",
    )


class TagRequest(SequenceRequest):
    """A text, or the next chunk of a stream, whose every step is labelled."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"input": "Ada Lovelace lived in London"},
                {"input": "Ada Love", "more": True},
            ]
        }
    )


class RegressRequest(SequenceRequest):
    """Features or a text, or the next chunk of a stream, from which values are predicted."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"features": [[0.1], [0.3]]}, {"features": [[0.1]], "steps_ahead": 24}]
        }
    )

    steps_ahead: int = Field(
        0,
        ge=0,
        le=2**31,
        description="Feed the predictions back as the features of the next steps, this number of "
        "times. The state that a reply returns is that before them.",
    )

    @property
    def state_wanted_by(self) -> str | None:
        return super().state_wanted_by or ("steps_ahead" if self.steps_ahead else None)

    def drop_read_fields(self) -> None:
        """Drop long fields that have been read: the steps ahead do not need them."""
        self.input = self.features = self.state = None


class WordFeatures(BaseModel):
    """What is known of the words of a context, and of its question: one entry for each word."""

    model_config = ConfigDict(strict=True, extra="forbid")

    lemmas: Listed[str] | None = Field(None, description="Lemma of each word of the context.")
    question_lemmas: Listed[str] | None = Field(
        None, description="Lemma of each word of the question."
    )
    pos: Listed[str] | None = Field(
        None, description="Part-of-speech tag of each word of the context."
    )
    ner: Listed[str] | None = Field(
        None, description="Named-entity tag of each word of the context."
    )


class AnswerRequest(Request):
    """Questions, and the text to find the answers in."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"question": "Where does Ada live?", "context": "Ada lives in Lisbon."},
                {
                    "question": ["Who lives in Lisbon?", "Who lives in Porto?"],
                    "context": "Ada lives in Lisbon. Ben lives in Porto.",
                    "n_best": 3,
                },
            ]
        }
    )

    question: Texts | None = Field(
        None,
        description="A question, or a list of questions. A list of words, in a list, is a question "
        "that is split into words already.",
    )
    context: Texts | None = Field(
        None,
        description="The text that all questions are about, or a list with one for each question; "
        "words as for `question`.",
    )
    preset: str | None = Field(None, description=_DOCUMENT)
    n_best: int = Field(
        1, ge=1, le=MAX_ANSWERS, description="Most answers to each question, the best ones first."
    )
    features: WordFeatures | Listed[WordFeatures] | None = Field(
        None,
        description="For models that need lemmas or tags: those of the words, or a list with those "
        "of each question's words.",
    )

    @property
    def begun_by(self) -> str | None:
        return None if self.state is None else "state"  # a preset is a document


class EncodeRequest(SequenceRequest):
    """Features or a text, or the next chunk of a stream, whose outputs are returned."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"features": [[0.1, 0.2], [0.3, 0.4]], "return_state": True}]
        }
    )


class EmbedRequest(SequenceRequest):
    """Texts or features to turn into vectors, in the shape of OpenAI's embeddings."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"input": ["How far is it?", "Who wrote it?"], "encoding_format": "float"}]
        }
    )

    encoding_format: Literal["float", "base64"] = Field(
        "float",
        description="`float`: lists of numbers; `base64`: the bytes of little-endian float32 "
        "numbers, in base64.",
    )
    dimensions: int | None = Field(
        None, description="Not supported unless equal to the width of the model's vectors."
    )
    user: str | None = Field(None, description="Ignored.")


class ScoreRequest(ChunkRequest):
    """A text, or the next chunk of one, whose likelihood is returned."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"input": "To be, or not to be"}, {"input": "To be, or n", "more": True}]
        }
    )

    input: Input = Field(description=INPUT)


class TokenizeRequest(ModelRequest):
    """A text to turn into token ids."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt": "To be, or not", "return_token_strs": True}]}
    )

    prompt: str = Field(description="The text.")
    add_special_tokens: bool = Field(
        True,
        description="Add the ids that the model reads around a text, so that the ids are those of "
        "the same text in other requests.",
    )
    return_token_strs: bool = Field(False, description="Return the text of each id, too.")


class DetokenizeRequest(ModelRequest):
    """Token ids to turn into a text."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tokens": [20, 21, 22]}]})

    tokens: Listed[int] = Field(description="The ids.")
