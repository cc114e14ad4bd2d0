"""The quasi-recurrent network, QRNN (Bradbury et al. 2017), as in salesforce/pytorch-qrnn."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from sruserve.kernels import Cell, CellLayer, Kind
from sruserve.model.cells.stack import (
    Builder,
    EachLayer,
    Shapes,
    Stack,
    StackConfig,
)
from sruserve.model.state import StateLayout

Window = Literal[1, 2]


class QRNNConfig(StackConfig):
    """A stack of QRNN layers: z = tanh Z, c = σ(F) ⊙ z + (1 - σ(F)) ⊙ c′, h = σ(O) ⊙ c.

    With `highway`, the baseline of the SRU paper: h = σ(O) ⊙ c + (1 - σ(O)) ⊙ x′. Here x′ is the
    layer's input, or a fourth projection X of it if input and output differ in width.
    """

    family: ClassVar[str] = "qrnn"

    window: Window | Annotated[tuple[Window, ...], EachLayer] = Field(
        1,
        description="Inputs that a step reads: 1, its own; 2, also the previous one. Or a list "
        "with one for each layer.",
    )
    output_gate: bool = Field(True, description="h is σ(O) ⊙ c; without it, h is c.")
    zoneout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="The forget gate is multiplied by 1 - zoneout at inference."
    )
    highway: bool = Field(False, description="SRU's highway connection around the layer.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if isinstance(self.window, tuple) and len(self.window) != self.num_layers:
            raise ValueError(f"window lists {len(self.window)} values for {self.num_layers} layers")
        if self.bidirectional and 2 in map(self.layer_window, range(self.num_layers)):
            raise ValueError("a bidirectional stack has window 1 in all layers")
        if self.highway and not self.output_gate:
            raise ValueError("highway needs output_gate: set output_gate to true")
        return self

    def layer_window(self, layer: int) -> int:
        """Number of inputs that a step of layer `layer` reads."""
        return self.window if isinstance(self.window, int) else self.window[layer]

    def blocks(self, layer: int) -> int:
        """Row blocks of layer `layer`: Z and F, O for an output gate, X for a projected highway."""
        if not self.output_gate:
            return 2
        wide = self.layer_input(layer) != self.layer_output(layer)
        return 4 if self.highway and wide else 3

    def shapes(self) -> Shapes:
        shapes: Shapes = {}
        for i in range(self.num_layers):
            rows = self.blocks(i) * self.layer_output(i)
            columns = self.layer_window(i) * self.layer_input(i)
            shapes[f"layers.{i}.linear.weight"] = (rows, columns)
            shapes[f"layers.{i}.linear.bias"] = (rows,)
        return shapes

    def states(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        states = []
        for i in range(self.num_layers):
            states.append((f"{i}.c", (self.layer_output(i),)))
            if self.layer_window(i) == 2:
                states.append((f"{i}.x", (self.layer_input(i),)))
        return states

    def stack(self, tensors: Mapping[str, Tensor], layout: StateLayout, builder: Builder) -> Stack:
        layers = []
        for i in range(self.num_layers):
            weight, bias = (tensors[f"layers.{i}.linear.{name}"] for name in ("weight", "bias"))
            blocks = self.blocks(i)
            layers.append(
                CellLayer(
                    linear=builder.linear(weight, bias),
                    cell=Cell(kind=Kind.QRNN, blocks=blocks, zoneout=self.zoneout),
                    column=layout.column(f"{i}.c"),
                    previous=layout.column(f"{i}.x") if self.layer_window(i) == 2 else None,
                    highway_is_input=self.highway and blocks == 3,
                    backward_from=self.layer_hidden(i) if self.bidirectional else None,
                    fast=builder.fast,
                )
            )
        return Stack(layers)
