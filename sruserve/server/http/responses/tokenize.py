"""The replies of `/tokenize` and `/detokenize`, in vLLM's shape."""

from pydantic import BaseModel, Field


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
