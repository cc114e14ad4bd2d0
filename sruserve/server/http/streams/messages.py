"""The requests and replies of `/v1/streams`."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sruserve.server.http.responses.classify import ClassifyReply
from sruserve.server.http.responses.complete import CompletionReply
from sruserve.server.http.responses.encode import EncodeReply
from sruserve.server.http.responses.regress import RegressReply
from sruserve.server.http.responses.score import ScoreReply
from sruserve.server.http.responses.tag import TagReply
from sruserve.server.streams.forks import MAX_FORKS
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.requests import (
    MODEL,
    ClassifyRequest,
    EncodeRequest,
    RegressRequest,
    Request,
    ScoreRequest,
    TagRequest,
)

_Number = Annotated[int, Field(ge=0, le=2**53)]
_OF_STREAM = ("model", "state", "preset")  # fields of requests that a stream sets itself


class CreateStream(BaseModel):
    """A new stream, from a state token, a preset, or nothing."""

    model_config = ConfigDict(
        strict=True, extra="forbid", json_schema_extra={"examples": [{"model": "shakespeare"}]}
    )

    model: str | None = Field(None, description=MODEL)
    state: str | None = Field(None, description="A state from a reply.")
    preset: str | None = Field(None, description="Name of a preset of the model.")
    idle_seconds: int | None = Field(
        None,
        ge=1,
        le=2**31,
        description="The stream's life without a step; the operator sets a maximum.",
    )

    @model_validator(mode="after")
    def _begins_once(self) -> Self:
        if self.state is not None and self.preset is not None:
            raise ValueError("send either 'state' or 'preset', not both")
        return self


class Fork(BaseModel):
    """New streams in the state of this one."""

    model_config = ConfigDict(strict=True, extra="forbid")

    n: int = Field(1, ge=1, le=MAX_FORKS, description="Number of new streams.")


class Rewind(BaseModel):
    """The step to rewind to."""

    model_config = ConfigDict(strict=True, extra="forbid")

    step: _Number = Field(description="One of the stream's `checkpoints`.")


class Step(Request):
    """The fields of all steps: a number, and nothing that the stream sets itself."""

    step: _Number = Field(description="The stream's `next_step`, or its last step again.")

    @model_validator(mode="after")
    def _leaves_out_stream_fields(self) -> Self:
        for field in _OF_STREAM:
            if getattr(self, field):
                raise ValueError(f"a step takes no '{field}': the stream has its own; leave it out")
        if self.return_state:
            raise ValueError(
                "a step takes no 'return_state': leave it out, and get the state from "
                "/v1/streams/{id}/state"
            )
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe the fields of requests that a step may have."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for field in (*_OF_STREAM, "return_state"):
            properties.pop(field, None)
        return schema


class ClassifyStep(Step, ClassifyRequest):
    """A step of a stream of a model that classifies."""


class TagStep(Step, TagRequest):
    """A step of a stream of a model that tags."""


class RegressStep(Step, RegressRequest):
    """A step of a stream of a model that predicts values."""


class EncodeStep(Step, EncodeRequest):
    """A step of a stream of a model that encodes."""


class ScoreStep(Step, ScoreRequest):
    """A step of a stream of a language model that reads `input`."""


class CompleteStep(Step, CompletionRequest):
    """A step of a stream of a language model that continues `prompt`."""


class StreamReply(BaseModel):
    """A server-held stream."""

    id: str = Field(description="Id of the stream, for the path of its routes.")
    object: str = Field("stream", description="Always `stream`.")
    model: str = Field(description="Id of the stream's model.")
    task: str = Field(description="Task of the model, which determines the fields of a step.")
    step: int = Field(description="Number of its last step; 0 before the first.")
    next_step: int = Field(description="Number that the next new step must have.")
    checkpoints: list[int] = Field(description="Steps that `rewind` accepts.")
    idle_seconds: int = Field(description="Seconds without a step after which the stream expires.")
    created: int = Field(description="When the stream was created, in seconds since 1970.")
    expires_at: int = Field(
        description="When the stream ends without a further step, in seconds since 1970."
    )


class StreamList(BaseModel):
    object: str = Field("list", description="Always `list`.")
    data: list[StreamReply] = Field(description="The new streams.")


class StreamState(BaseModel):
    id: str = Field(description="Id of the stream.")
    step: int = Field(description="Number of the stream's last step.")
    state: str | None = Field(description="Null before the first input.")


class StreamDeleted(BaseModel):
    id: str = Field(description="Id of the deleted stream.")
    object: str = Field("stream.deleted", description="Always `stream.deleted`.")
    deleted: bool = Field(True, description="Always true.")


class _OfStream(BaseModel):
    stream: str = Field(description="Id of the stream.")
    step: int = Field(description="Number of the step.")


class ClassifyStepReply(_OfStream, ClassifyReply): ...


class TagStepReply(_OfStream, TagReply): ...


class RegressStepReply(_OfStream, RegressReply): ...


class EncodeStepReply(_OfStream, EncodeReply): ...


class ScoreStepReply(_OfStream, ScoreReply): ...


class CompleteStepReply(_OfStream, CompletionReply): ...
