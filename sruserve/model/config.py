"""The frozen description of a network, as `config.json` holds it."""

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    model_validator,
)

from sruserve.model.errors import ConfigError

Task = Literal["classify", "generate", "encode"]
DType = Literal["float32", "bfloat16", "float16"]
Width = Annotated[int, Field(ge=1, le=1 << 20)]

ARCHITECTURES: dict[Task, str] = {
    "classify": "SRUForSequenceClassification",
    "generate": "SRUForCausalLM",
    "encode": "SRUModel",
}


class ResetGate(Enum):
    """Which c the reset gate reads: `previous` in every release, `updated` in Algorithm 1."""

    PREVIOUS = "previous"
    UPDATED = "updated"


class SRUConfig(BaseModel):
    """A stack of SRU layers, in the names of the constructor of `sru.SRU` 2.1.9-2.6.0."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_size: Width = Field(description="Features of the stack's input.")
    hidden_size: Width = Field(description="Features of a layer's output, per direction.")
    num_layers: PositiveInt = Field(2, le=1024)
    bidirectional: bool = Field(False, description="Serves whole inputs only: it has no stream.")
    projection_size: NonNegativeInt = Field(0, description="Inner width of a factorised weight.")
    use_tanh: bool = Field(False, description="h takes tanh(c) instead of c.")
    layer_norm: bool = False
    normalize_after: bool = Field(False, description="Norm the output, not the input.")
    has_skip_term: bool = True
    rescale: bool = Field(False, description="Multiply the highway by the stored `scale_x`.")
    proj_input_to_hidden_first: bool = False
    reset_gate: ResetGate = ResetGate.PREVIOUS

    @property
    def output_size(self) -> int:
        return self.hidden_size * (2 if self.bidirectional else 1)

    @property
    def projects_input(self) -> bool:
        return self.proj_input_to_hidden_first and self.input_size != self.output_size

    def layer_input(self, layer: int) -> int:
        """The width of what layer `layer` reads."""
        first = self.output_size if self.projects_input else self.input_size
        return first if layer == 0 else self.output_size


class ModelConfig(BaseModel):
    """A whole network: what goes in, the stack, and what its head is for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    architectures: tuple[str, ...]
    model_type: Literal["sru"] = "sru"
    task: Task
    dtype: DType = Field("float32", description="What it computes in unless the operator says.")
    vocab_size: PositiveInt | None = Field(None, description="None: it takes features, not ids.")
    id2label: dict[int, str] = Field(default_factory=dict)
    rnn: SRUConfig

    @model_validator(mode="after")
    def _fits_its_task(self) -> Self:
        if self.task == "classify" and sorted(self.id2label) != list(range(len(self.id2label))):
            raise ValueError("id2label must name every class, with ids from 0 on")
        if self.task == "classify" and not self.id2label:
            raise ValueError("task classify needs id2label")
        if self.task == "generate" and self.vocab_size is None:
            raise ValueError("task generate needs vocab_size")
        if self.task == "generate" and self.rnn.bidirectional:
            raise ValueError("a bidirectional network cannot generate: it would have to see ahead")
        return self

    @property
    def outputs(self) -> int | None:
        """How many numbers the head gives for a step; None where there is no head."""
        if self.task == "classify":
            return len(self.id2label)
        return self.vocab_size if self.task == "generate" else None

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.id2label[i] for i in range(len(self.id2label)))


def read_config(path: Path) -> ModelConfig:
    """Read `config.json`, or raise `ConfigError` with every field that is wrong."""
    try:
        return ModelConfig.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError(f"{path} describes no network: {explain(error)}") from error


def explain(error: ValidationError) -> str:
    """Pydantic's findings in one line: `field: what is wrong; …`."""
    found: list[dict[str, Any]] = [dict(e) for e in error.errors(include_url=False)]
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'value'}: {e['msg']}" for e in found)
