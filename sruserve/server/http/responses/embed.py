"""The reply of `embeddings`, in OpenAI's shape."""

from pydantic import BaseModel, Field

from sruserve.server.http.responses.results import ModelId


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
    model: ModelId
    usage: EmbeddingUsage = Field(description="What the request computed.")
