"""The options of a recurrent encoder and decoder with attention."""

from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from sruserve.model.cells import FAMILIES
from sruserve.model.cells.stack import Shapes, StackConfig, Width
from sruserve.model.config import explain
from sruserve.model.state import StateLayout

_LONGEST = 1 << 16  # positions
SERVED = ("sru", "lrn", "qrnn", "lstm", "gru", "rnn", "atr")


class RecurrentConfig(BaseModel):
    """An encoder and a decoder of recurrent layers with attention (Luong et al. 2015).

    The decoder's output h̃ is tanh(W [c; h]) for dot and general attention, W [c; h] + b for mlp
    (Bahdanau et al. 2015), and h for none, where c is the mean of the encoder's outputs that the
    attention weighs, and h is the output of the decoder's layers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["recurrent"] = "recurrent"
    family: str = Field("sru", description="The family of the recurrent layers of both sides.")
    encoder: SerializeAsAny[StackConfig]
    decoder: SerializeAsAny[StackConfig]
    source_embedding_size: Width
    target_embedding_size: Width
    attention: Literal["dot", "general", "mlp", "none"] = "general"
    input_feed: bool = Field(
        True, description="The decoder reads the h̃ of the step before beside the embedding."
    )
    encoder_starts_decoder: bool = Field(
        True, description="The decoder begins in the encoder's last state, else in zeros."
    )
    max_source: PositiveInt | None = Field(None, le=_LONGEST)
    max_target: PositiveInt | None = Field(None, le=_LONGEST)
    shared_embeddings: bool = Field(False, description="Source and target have one embedding.")
    tied_output: bool = Field(False, description="Scores use the target's embedding.")
    output_bias: bool = True

    @field_validator("family")
    @classmethod
    def _is_served(cls, family: str) -> str:
        if family not in SERVED:
            raise ValueError(f"must be one of {', '.join(SERVED)}")
        return family

    @field_validator("encoder", "decoder", mode="before")
    @classmethod
    def _is_of_its_family(cls, stack: Any, info: ValidationInfo) -> Any:
        family = FAMILIES.get(info.data.get("family", ""))
        if family is None:
            raise ValueError("cannot be read without a valid family")
        try:
            return stack if isinstance(stack, family) else family.model_validate(stack)
        except ValidationError as error:
            raise ValueError(explain(error)) from error

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.decoder.not_streamable_because:
            raise ValueError(f"decoder: {self.decoder.not_streamable_because}")
        if self.encoder.input_size != self.source_embedding_size:
            raise ValueError("encoder.input_size must be source_embedding_size")
        if self.decoder.input_size != self.fed_width:
            raise ValueError(f"decoder.input_size must be {self.fed_width}")
        if self.attention != "none" and self.memory_width != self.hidden_width:
            raise ValueError(
                f"the decoder's outputs ({self.hidden_width}) must be as wide as the encoder's "
                f"({self.memory_width})"
            )
        if self.encoder_starts_decoder and list(self.encoder.states()) != list(
            self.decoder.states()
        ):
            raise ValueError("encoder_starts_decoder needs states of one shape on both sides")
        if self.tied_output and self.target_embedding_size != self.hidden_width:
            raise ValueError("tied_output needs target embeddings as wide as the decoder's outputs")
        return self

    @property
    def whole_because(self) -> str | None:
        """Why sources have to be whole, as a clause "it …"; None: they may arrive in chunks."""
        both = self.encoder.bidirectional
        return "its encoder reads the source in both directions" if both else None

    @property
    def widest(self) -> int:
        """The largest width of a row on the way through both sides."""
        return max(self.encoder.widest, self.decoder.widest)

    @property
    def memory_width(self) -> int:
        """Width of the encoder's outputs."""
        return self.encoder.output_size

    @property
    def hidden_width(self) -> int:
        """Width of the decoder's outputs."""
        return self.decoder.output_size

    @property
    def fed_width(self) -> int:
        """Width of the decoder's inputs."""
        return self.target_embedding_size + (self.hidden_width if self.input_feed else 0)

    @property
    def state_layout(self) -> StateLayout:
        """The state of a hypothesis: that of the decoder's layers, then h̃."""
        fed = [("input_feed", (self.hidden_width,))] if self.input_feed else []
        return StateLayout([*self.decoder.states(), *fed])

    def check_vocabularies(self, source: int, target: int) -> None:
        """Raise ValueError unless the numbers of ids fit."""
        widths = (self.source_embedding_size, self.target_embedding_size)
        if self.shared_embeddings and (source != target or widths[0] != widths[1]):
            raise ValueError("shared_embeddings needs one vocabulary and one embedding size")

    def shapes(self, source: int, target: int) -> Shapes:
        """Return the tensors' shapes by name, for vocabularies of `source` and `target` ids."""
        width = self.hidden_width
        shapes: Shapes = {"target_embedding.weight": (target, self.target_embedding_size)}
        if not self.shared_embeddings:
            shapes["source_embedding.weight"] = (source, self.source_embedding_size)
        shapes |= {f"encoder.{name}": shape for name, shape in self.encoder.shapes().items()}
        shapes |= {f"decoder.{name}": shape for name, shape in self.decoder.shapes().items()}
        if self.attention == "general":
            shapes["attention.linear_in.weight"] = (width, width)
        if self.attention == "mlp":
            shapes["attention.linear_context.weight"] = (width, width)
            shapes["attention.linear_query.weight"] = (width, width)
            shapes["attention.linear_query.bias"] = (width,)
            shapes["attention.v.weight"] = (1, width)
            shapes["attention.linear_out.bias"] = (width,)
        if self.attention != "none":
            shapes["attention.linear_out.weight"] = (width, 2 * width)
        if not self.tied_output:
            shapes["output.weight"] = (target, width)
        if self.output_bias:
            shapes["output.bias"] = (target,)
        return shapes
