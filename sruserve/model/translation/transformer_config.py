"""The options of a Transformer whose feed-forward layers are SRUs."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from sruserve.model.cells.sru import SRUConfig
from sruserve.model.cells.stack import MAX_LAYERS, Shapes, Width
from sruserve.model.state import StateLayout

_LONGEST = 1 << 16  # positions
_LARGEST_TABLE = 1 << 26  # numbers of the positions' encodings: 256 MiB


class TransformerSRUConfig(BaseModel):
    """Transformer + SRU (Lei et al. 2018, 4.3), with the names of `flambe.nn.TransformerSRU`.

    In every layer of encoder and decoder, W · SRU_layer(x) + b is in the place of the feed-forward
    W · ReLU_layer(x) + b.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["transformer_sru"] = "transformer_sru"
    d_model: Width = Field(512, description="Features of a position.")
    nhead: PositiveInt = 8
    num_encoder_layers: PositiveInt = Field(4, le=MAX_LAYERS)
    num_decoder_layers: PositiveInt = Field(4, le=MAX_LAYERS)
    sru: SRUConfig = Field(description="The SRU layer of each layer, one direction of it.")
    bidirectional_encoder: bool = Field(
        False, description="The encoder's SRU layers go in both directions."
    )
    encoder_starts_decoder: bool = Field(
        False, description="Each SRU layer of the decoder begins in the encoder's last state."
    )
    norm_first: bool = Field(
        False, description="Normalize what a sublayer reads, and the last output, not each sum."
    )
    embedding_size: Width | None = Field(
        None, description="Width of the embeddings, which are then projected; None: d_model."
    )
    embedding_scale: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="Multiplies embeddings, often √d_model."
    )
    positions: Literal["sinusoidal", "learned", "none"] = Field(
        "sinusoidal", description="What is added to the scaled embeddings."
    )
    max_source: PositiveInt = Field(1024, le=_LONGEST, description="The most ids of a source.")
    max_target: PositiveInt = Field(1024, le=_LONGEST, description="The most ids of a target.")
    shared_embeddings: bool = Field(False, description="Source and target have one embedding.")
    tied_output: bool = Field(False, description="Scores use the target's embedding.")
    output_bias: bool = True

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.d_model % self.nhead:
            raise ValueError(f"d_model ({self.d_model}) must be a multiple of nhead ({self.nhead})")
        sru = self.sru
        if sru.input_size != self.d_model:
            raise ValueError(f"sru.input_size ({sru.input_size}) is not d_model ({self.d_model})")
        if sru.num_layers != 1 or sru.bidirectional or sru.projects_input:
            raise ValueError(
                "sru is one layer of one direction: set num_layers to 1, and bidirectional and "
                "proj_input_to_hidden_first to false; bidirectional_encoder makes both directions"
            )
        longest = max(self.max_source, self.max_target)
        if longest * self.width > _LARGEST_TABLE:
            raise ValueError(
                f"{longest:,} positions of {self.width:,} numbers are over the limit of "
                f"{_LARGEST_TABLE:,} numbers: lower max_source and max_target"
            )
        if self.tied_output and self.width != self.d_model:
            raise ValueError("tied_output needs embeddings as wide as d_model")
        if self.encoder_starts_decoder:
            if self.num_encoder_layers != self.num_decoder_layers:
                raise ValueError("encoder_starts_decoder needs as many decoder as encoder layers")
            if self.bidirectional_encoder:
                raise ValueError("encoder_starts_decoder needs an encoder of one direction")
        return self

    @property
    def width(self) -> int:
        """Width of the embeddings."""
        return self.embedding_size or self.d_model

    @property
    def encoder_sru(self) -> SRUConfig:
        """The SRU layer of an encoder's layer."""
        return self.sru.model_copy(update={"bidirectional": self.bidirectional_encoder})

    @property
    def widest(self) -> int:
        """The largest width of a row on the way through both sides."""
        return max(self.encoder_sru.widest, self.sru.widest, 3 * self.d_model)

    def layouts(self) -> tuple[StateLayout, StateLayout]:
        """Return the states of the encoder's SRU layers, and of the decoder's."""
        inner, encoder = self.sru.output_size, self.encoder_sru.output_size
        return (
            StateLayout((f"{i}.c", (encoder,)) for i in range(self.num_encoder_layers)),
            StateLayout((f"{i}.c", (inner,)) for i in range(self.num_decoder_layers)),
        )

    def check_vocabularies(self, source: int, target: int) -> None:
        """Raise ValueError unless the numbers of ids fit."""
        if self.shared_embeddings and source != target:
            raise ValueError(
                f"shared_embeddings needs one vocabulary, but they have {source} and {target} ids"
            )

    def shapes(self, source: int, target: int) -> Shapes:
        """Return the tensors' shapes by name, for vocabularies of `source` and `target` ids."""
        shapes: Shapes = {"target_embedding.weight": (target, self.width)}
        if not self.shared_embeddings:
            shapes["source_embedding.weight"] = (source, self.width)
        if self.positions == "learned":
            shapes["source_positions.weight"] = (self.max_source, self.width)
            shapes["target_positions.weight"] = (self.max_target, self.width)
        for side, layers, sru, attentions in (
            ("encoder", self.num_encoder_layers, self.encoder_sru, ("self_attn",)),
            ("decoder", self.num_decoder_layers, self.sru, ("self_attn", "multihead_attn")),
        ):
            if self.width != self.d_model:
                shapes |= _linear(f"{side}.proj", self.width, self.d_model)
            for layer in range(layers):
                shapes |= self._layer_shapes(f"{side}.layers.{layer}.", sru, attentions)
            if self.norm_first:
                shapes |= _norm(f"{side}.norm", self.d_model)
        if not self.tied_output:
            shapes["output.weight"] = (target, self.d_model)
        if self.output_bias:
            shapes["output.bias"] = (target,)
        return shapes

    def _layer_shapes(self, prefix: str, sru: SRUConfig, attentions: tuple[str, ...]) -> Shapes:
        d = self.d_model
        shapes: Shapes = {}
        for attention in attentions:
            shapes[f"{prefix}{attention}.in_proj_weight"] = (3 * d, d)
            shapes[f"{prefix}{attention}.in_proj_bias"] = (3 * d,)
            shapes |= _linear(f"{prefix}{attention}.out_proj", d, d)
        shapes |= {f"{prefix}sru.{k}": v for k, v in sru.layer_shapes(0).items()}
        shapes |= _linear(f"{prefix}linear2", sru.output_size, d)
        for norm in range(len(attentions) + 1):
            shapes |= _norm(f"{prefix}norm{norm + 1}", d)
        return shapes


def _linear(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
