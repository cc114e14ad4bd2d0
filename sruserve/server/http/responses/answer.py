"""The reply of `answer`."""

from pydantic import BaseModel, Field

from sruserve.server.http.responses.results import Id, ModelId, Steps


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
    id: Id
    model: ModelId
    results: list[Answers] = Field(description="One entry for each question, in their order.")
    usage: Steps = Field(description="What the request computed: the words of all pairs.")
