"""What every family of recurrent layers says of itself: options, tensors, state, layers."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator
from torch import Tensor

from sruserve.kernels import Layer, Multiply, make_product
from sruserve.model.state import StateLayout

Width = Annotated[int, Field(ge=1, le=1 << 20)]
MOST_LAYERS = 1024
EachLayer = Field(max_length=MOST_LAYERS, fail_fast=True)  # of a list with something for each
Widths = Annotated[tuple[Width, ...], EachLayer]
Shapes = dict[str, tuple[int, ...]]
StackConfigT = TypeVar("StackConfigT", bound="StackConfig")


@dataclass(frozen=True, slots=True)
class Builder:
    """Lays weights out for the device and the dtype that a network computes in.

    fast: see `make_product`.
    """

    dtype: torch.dtype
    device: torch.device
    fast: bool = False

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Multiply:
        """The product with `weight` (out, in) and `bias` (out)."""
        return make_product(weight, bias, self.dtype, self.device, self.fast)

    def put(self, tensor: Tensor) -> Tensor:
        """The tensor in the compute dtype."""
        return tensor.to(self.device, self.dtype).contiguous()

    def exact(self, tensor: Tensor) -> Tensor:
        """The tensor in float32, whatever the compute dtype."""
        return tensor.to(self.device, torch.float32).contiguous()


@dataclass(frozen=True, slots=True)
class Stack:
    """Layers, ready to run one after another.

    entry: a product before the first of them.
    concat: the output is that of all layers, side by side, instead of the last one's.
    along_time: a large batch is cut along time, all sequences together, and not by sequence: a
        step's product costs little more for many of them.
    """

    layers: Sequence[Layer]
    entry: Multiply | None = None
    concat: bool = False
    along_time: bool = False


class StackConfig(BaseModel):
    """A stack of recurrent layers of one family; a subclass for each family.

    family: what `model_type` in a config.json says.
    untrained: the ends of the names of tensors that training leaves as they are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    family: ClassVar[str]
    untrained: ClassVar[tuple[str, ...]] = ()

    input_size: Width = Field(description="Features of the stack's input.")
    hidden_size: Width | Widths = Field(
        description="Features of a layer's output, per direction; a list has one for each layer."
    )
    num_layers: PositiveInt = Field(2, le=MOST_LAYERS)
    bidirectional: bool = Field(False, description="Serves whole inputs only: it has no stream.")

    @model_validator(mode="after")
    def _has_a_width_for_every_layer(self) -> Self:
        if isinstance(self.hidden_size, tuple) and len(self.hidden_size) != self.num_layers:
            raise ValueError(
                f"hidden_size lists {len(self.hidden_size)} widths for {self.num_layers} layers"
            )
        return self

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def layer_hidden(self, layer: int) -> int:
        """The features of layer `layer`, per direction."""
        return self.hidden_size if isinstance(self.hidden_size, int) else self.hidden_size[layer]

    def layer_input(self, layer: int) -> int:
        """The width of what layer `layer` reads."""
        return self.layer_output(layer - 1) if layer else self.input_size

    def layer_output(self, layer: int) -> int:
        """The width of what layer `layer` gives."""
        return self.layer_hidden(layer) * self.directions

    @property
    def output_size(self) -> int:
        """The width of the stack's output."""
        return self.layer_output(self.num_layers - 1)

    @property
    def whole(self) -> str | None:
        """Why it reads whole inputs only, as "it …"; None where it streams."""
        if self.bidirectional:
            return "it is bidirectional, so its outputs depend on steps that are still to come"
        return None

    @property
    def note(self) -> str | None:
        """What a user should know of how it computes, in a sentence, if there is something."""
        return None

    @abstractmethod
    def shapes(self) -> Shapes:
        """Every tensor of the stack, in a model folder's names without their `rnn.`."""

    @abstractmethod
    def states(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        """What it remembers of a stream: names and shapes of float32 entries, in order."""

    @abstractmethod
    def stack(self, tensors: Mapping[str, Tensor], layout: StateLayout, builder: Builder) -> Stack:
        """The stack, ready to run.

        tensors: as `shapes` names them. layout: says at which columns each of `states` lies.
        """


class Unidirectional:
    """Mixed into the config of a family that has no backward direction."""

    @model_validator(mode="after")
    def _runs_forward(self: StackConfigT) -> StackConfigT:
        if self.bidirectional:
            raise ValueError(f"{self.family} has no bidirectional layers")
        return self
