"""The reply of a refused request, in OpenAI's shape."""

from pydantic import BaseModel, Field


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
