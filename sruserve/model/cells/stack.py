"""The interface of every family of recurrent layers: options, tensors, state and layers."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator
from torch import Tensor

from sruserve.kernels import Layer, LinearOp, make_linear
from sruserve.model.state import StateLayout

MAX_WIDTH = 1 << 16  # numbers in a row: 4,096 rows are 1 GiB
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]
MAX_LAYERS = 1024
EachLayer = Field(max_length=MAX_LAYERS, fail_fast=True)  # for a list with one value per layer
Widths = Annotated[tuple[Width, ...], EachLayer]
Shapes = dict[str, tuple[int, ...]]
StackConfigT = TypeVar("StackConfigT", bound="StackConfig")


@dataclass(frozen=True, slots=True)
class Builder:
    """Converts weights to a network's device and compute dtype.

    fast, integer: see `make_linear`.
    """

    dtype: torch.dtype
    device: torch.device
    fast: bool = False
    integer: bool = False

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> LinearOp:
        """Pack a linear layer with `weight` (out, in) and `bias` (out)."""
        return make_linear(weight, bias, self.dtype, self.device, self.fast, self.integer)

    def put(self, tensor: Tensor) -> Tensor:
        """Convert a tensor to the compute dtype."""
        return tensor.to(self.device, self.dtype).contiguous()

    def exact(self, tensor: Tensor) -> Tensor:
        """Convert a tensor to float32, whatever the compute dtype."""
        return tensor.to(self.device, torch.float32).contiguous()


@dataclass(frozen=True, slots=True)
class Stack:
    """Layers, ready to run one after another.

    input_projection: a linear layer before the first layer.
    concat: the output concatenates those of all layers, instead of being the last one's.
    along_time: cut a large batch along time, with all sequences in each piece, not by sequence:
        a step's product costs little more for many sequences.
    """

    layers: Sequence[Layer]
    input_projection: LinearOp | None = None
    concat: bool = False
    along_time: bool = False


class StackConfig(BaseModel):
    """A stack of recurrent layers of one family; a subclass for each family.

    family: the value of `model_type` in config.json.
    untrained: name suffixes of the tensors that training does not change.
    pools: whether a step's output is already one of the whole input up to it.
    other_kernels: `self_check_layers` checks its kernels for a GPU, beside those of all models.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    family: ClassVar[str]
    untrained: ClassVar[tuple[str, ...]] = ()
    pools: ClassVar[bool] = False
    other_kernels: ClassVar[bool] = False

    input_size: Width = Field(description="Features of the stack's input.")
    hidden_size: Width | Widths = Field(
        description="Features of a layer's output, per direction; or a list with one per layer."
    )
    num_layers: PositiveInt = Field(2, le=MAX_LAYERS)
    bidirectional: bool = Field(False, description="Both directions: it cannot stream.")

    @model_validator(mode="after")
    def _has_a_width_for_every_layer(self) -> Self:
        expected, what = self.listed
        if isinstance(self.hidden_size, tuple) and len(self.hidden_size) != expected:
            raise ValueError(
                f"hidden_size lists {len(self.hidden_size)} widths for {expected} {what}"
            )
        return self

    @property
    def prefers_cpu(self) -> bool:
        """Whether no GPU has been measured to be faster at its layers; see `placement`."""
        return False

    @property
    def listed(self) -> tuple[int, str]:
        """Of how many things hidden_size lists the widths, and what they are called."""
        return self.num_layers, "layers"

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def layer_hidden(self, layer: int) -> int:
        """Number of features of layer `layer`, per direction."""
        return self.hidden_size if isinstance(self.hidden_size, int) else self.hidden_size[layer]

    def layer_input(self, layer: int) -> int:
        """Width of layer `layer`'s input."""
        return self.layer_output(layer - 1) if layer else self.input_size

    def layer_output(self, layer: int) -> int:
        """Width of layer `layer`'s output."""
        return self.layer_hidden(layer) * self.directions

    @property
    def output_size(self) -> int:
        """Width of the stack's output."""
        return self.layer_output(self.num_layers - 1)

    @property
    def widest(self) -> int:
        """The largest width of a row on its way through the layers."""
        products = [shape for shape in self.shapes().values() if len(shape) > 1]
        return max(size for shape in products for size in shape)

    @property
    def final_entries(self) -> tuple[str, ...]:
        """Names of each layer's entry of the end state: its h, or its c if it carries no h."""
        kind = "h" if "0.h" in dict(self.states()) else "c"
        return tuple(f"{layer}.{kind}" for layer in range(self.num_layers))

    @property
    def not_streamable_because(self) -> str | None:
        """Why the stack cannot stream, as a clause "it …"; None if it can."""
        if self.bidirectional:
            return "it is bidirectional, so its outputs depend on later steps"
        return None

    @property
    def note(self) -> str | None:
        """A remark for users about the computation, in one clause; None without one."""
        return None

    @abstractmethod
    def shapes(self) -> Shapes:
        """Return the tensors' shapes by name; names as in a model folder, without `rnn.`."""

    def products(self) -> dict[str, int]:
        """Return the weights that multiply whole inputs, and the axis of their outputs."""
        return {name: 0 for name, shape in self.shapes().items() if len(shape) == 2}

    @abstractmethod
    def states(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        """Return the entries of a stream's state, name and shape, in order; all are float32."""

    @abstractmethod
    def stack(self, tensors: Mapping[str, Tensor], layout: StateLayout, builder: Builder) -> Stack:
        """Build the stack.

        tensors: weights, named as in `shapes`. layout: the columns of each entry of `states`.
        """


class Unidirectional:
    """Mix-in for the config of a family without a backward direction."""

    @model_validator(mode="after")
    def _runs_forward(self: StackConfigT) -> StackConfigT:
        if self.bidirectional:
            raise ValueError(f"{self.family} layers cannot be bidirectional: set it to false")
        return self
