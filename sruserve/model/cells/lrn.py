"""The lightweight recurrent network, LRN (Zhang and Sennrich 2019), and oLRN."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from sruserve.kernels import Activation, Cell, CellLayer, Kind, Norm, NormKind
from sruserve.model.cells.stack import Builder, Shapes, Stack, StackConfig
from sruserve.model.state import StateLayout


class LRNConfig(StackConfig):
    """A stack of LRN layers: h = g(σ(p + h′) ⊙ r + σ(q - h′) ⊙ h′), with [p | q | r] = W x + b.

    With an output gate (oLRN), [p | q | r | o] = W x + b; then c is that h, and h = σ(o - c) ⊙ c.
    Each block has the channels of the forward direction, then those of the backward one.
    """

    family: ClassVar[str] = "lrn"

    activation: Literal["tanh", "identity"] = Field(
        "tanh", description="g: tanh in the released cells, identity in their README."
    )
    output_gate: bool = Field(False, description="oLRN, of the machine translation README.")
    rms_norm: bool = Field(
        False, description="RMS norm of all of W x, before the bias (doc and nli)."
    )

    @model_validator(mode="after")
    def _norms_one_direction(self) -> Self:
        if self.rms_norm and self.bidirectional:
            raise ValueError("rms_norm is for one direction: set bidirectional to false")
        return self

    @property
    def _blocks(self) -> int:
        return 4 if self.output_gate else 3

    def shapes(self) -> Shapes:
        shapes: Shapes = {}
        for i in range(self.num_layers):
            columns = self._blocks * self.layer_output(i)
            shapes[f"layers.{i}.weight"] = (self.layer_input(i), columns)
            shapes[f"layers.{i}.bias"] = (columns,)
            if self.rms_norm:
                shapes[f"layers.{i}.norm"] = (columns,)
        return shapes

    def products(self) -> dict[str, int]:
        return dict.fromkeys(super().products(), 1)

    def states(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        return [(f"{i}.h", (self.layer_output(i),)) for i in range(self.num_layers)]

    def stack(self, tensors: Mapping[str, Tensor], layout: StateLayout, builder: Builder) -> Stack:
        cell = Cell(
            kind=Kind.LRN,
            blocks=self._blocks,
            activation=Activation.TANH if self.activation == "tanh" else Activation.IDENTITY,
        )
        layers = []
        for i in range(self.num_layers):
            weight, bias = tensors[f"layers.{i}.weight"].T, tensors[f"layers.{i}.bias"]
            norm = None
            if self.rms_norm:
                norm = Norm(builder.put(tensors[f"layers.{i}.norm"]), None, NormKind.RMS)
            layers.append(
                CellLayer(
                    linear=builder.linear(weight, None if norm else bias),
                    cell=cell,
                    column=layout.column(f"{i}.h"),
                    backward_from=self.layer_hidden(i) if self.bidirectional else None,
                    inner_norm=norm,
                    inner_bias=builder.put(bias) if norm else None,
                    fast=builder.fast,
                )
            )
        return Stack(layers)
