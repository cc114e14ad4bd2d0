"""LSTM, GRU and RNN as in `torch.nn`, and the ATR (Zhang et al. 2018)."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field, NonNegativeInt, model_validator
from torch import Tensor

from sruserve.kernels import FusedGatedLayer, GatedCell, GatedKind, GatedLayer, PanelWeight
from sruserve.model.cells.stack import MAX_WIDTH, Builder, Shapes, Stack, StackConfig
from sruserve.model.state import StateLayout


class GatedConfig(StackConfig):
    """A stack whose steps need a matrix product; tensors have the names of `torch.nn`."""

    other_kernels: ClassVar[bool] = True

    bias: bool = True
    concat_layers: bool = Field(False, description="The output concatenates those of all layers.")

    @property
    def prefers_cpu(self) -> bool:
        # Without kernels of torch's own: 112 ms a layer on an H100 for 32 inputs of 512 steps.
        return not FusedGatedLayer.fits(self.kind, torch.device("cuda"))

    @property
    def output_size(self) -> int:
        widths = [self.layer_output(layer) for layer in range(self.num_layers)]
        return sum(widths) if self.concat_layers else widths[-1]

    @property
    @abstractmethod
    def kind(self) -> GatedKind:
        """The recurrence of its layers."""

    def layer_hidden(self, layer: int) -> int:
        """Number of features of layer `layer`'s h, per direction."""
        return self.layer_width(layer)

    def layer_width(self, layer: int) -> int:
        """Number of channels of layer `layer`'s gates, per direction."""
        return super().layer_hidden(layer)

    def shapes(self) -> Shapes:
        shapes: Shapes = {}
        for layer in range(self.num_layers):
            for suffix in self._suffixes(layer):
                shapes |= self._direction_shapes(layer, suffix)
        return shapes

    def products(self) -> dict[str, int]:
        return {name: axis for name, axis in super().products().items() if "_ih" in name}

    def states(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        return [(f"{i}.h", (self.layer_output(i),)) for i in range(self.num_layers)]

    def stack(self, tensors: Mapping[str, Tensor], layout: StateLayout, builder: Builder) -> Stack:
        layers = [self._layer(i, tensors, layout, builder) for i in range(self.num_layers)]
        return Stack(layers, concat=self.concat_layers, along_time=True)

    def _suffixes(self, layer: int) -> list[str]:
        """Return the suffixes of the tensor names of a layer's directions."""
        return [f"_l{layer}", f"_l{layer}_reverse"][: self.directions]

    def _direction_shapes(self, layer: int, suffix: str) -> Shapes:
        hidden, rows = self.layer_hidden(layer), self.kind.blocks * self.layer_width(layer)
        shapes: Shapes = {
            f"weight_ih{suffix}": (rows, self.layer_input(layer)),
            f"weight_hh{suffix}": (rows, hidden),
        }
        if self.bias:
            shapes[f"bias_ih{suffix}"] = shapes[f"bias_hh{suffix}"] = (rows,)
        if hidden != self.layer_width(layer):
            shapes[f"weight_hr{suffix}"] = (hidden, self.layer_width(layer))
        return shapes

    def _layer(
        self, layer: int, tensors: Mapping[str, Tensor], layout: StateLayout, builder: Builder
    ) -> GatedLayer | FusedGatedLayer:
        ends, cells = self._suffixes(layer), []
        if FusedGatedLayer.fits(self.kind, builder.device):
            return self._fused(layer, tensors, layout, builder)
        for direction, end in enumerate(ends):
            cell_column = 0
            if self.kind is GatedKind.LSTM:
                cell_column = layout.column(f"{layer}.c") + direction * self.layer_width(layer)
            first, second = self._recurrent(tensors, end, builder)
            cells.append(
                GatedCell(
                    kind=self.kind,
                    first=first,
                    second=second,
                    column=layout.column(f"{layer}.h") + direction * self.layer_hidden(layer),
                    cell_column=cell_column,
                    backward=direction == 1,
                )
            )
        weight = torch.cat([tensors[f"weight_ih{end}"] for end in ends])
        bias = torch.cat([tensors[f"bias_ih{end}"] for end in ends]) if self.bias else None
        return GatedLayer(builder.linear(weight, bias), tuple(cells))

    def _fused(
        self, layer: int, tensors: Mapping[str, Tensor], layout: StateLayout, builder: Builder
    ) -> FusedGatedLayer:
        directions = [
            [tensors[name] for name in self._direction_shapes(layer, end)]
            for end in self._suffixes(layer)
        ]
        is_lstm = self.kind is GatedKind.LSTM
        return FusedGatedLayer.of(
            self.kind,
            directions,
            layout.column(f"{layer}.h"),
            layout.column(f"{layer}.c") if is_lstm else 0,
            builder.dtype,
            builder.device,
        )

    def _recurrent(
        self, tensors: Mapping[str, Tensor], end: str, builder: Builder
    ) -> tuple[PanelWeight, PanelWeight | None]:
        """Pack the weights of a step's products."""

        def pack(weight: Tensor, bias: Tensor | None, gates: int) -> PanelWeight:
            return PanelWeight.of(
                builder.put(weight), None if bias is None else builder.exact(bias), gates
            )

        weight, bias = tensors[f"weight_hh{end}"], tensors.get(f"bias_hh{end}")
        if self.kind is GatedKind.GRU_RESET_BEFORE:
            gates = 2 * len(weight) // 3
            late = None if bias is None else bias[gates:]
            return (
                pack(weight[:gates], None if bias is None else bias[:gates], 2),
                pack(weight[gates:], late, 1),
            )
        projection = tensors.get(f"weight_hr{end}")
        return (
            pack(weight, bias, self.kind.blocks),
            None if projection is None else pack(projection, None, 1),
        )


class LSTMConfig(GatedConfig):
    """Layers of `torch.nn.LSTM`; row blocks i, f, g, o."""

    family: ClassVar[str] = "lstm"

    proj_size: NonNegativeInt = Field(
        0, le=MAX_WIDTH, description="Features of the projected h, per direction; 0: no projection."
    )

    @property
    def kind(self) -> GatedKind:
        return GatedKind.LSTM

    @model_validator(mode="after")
    def _projects_to_fewer(self) -> "LSTMConfig":
        narrowest = min(self.layer_width(i) for i in range(self.num_layers))
        if self.proj_size >= narrowest:
            raise ValueError(
                f"proj_size ({self.proj_size}) must be smaller than hidden_size ({narrowest})"
            )
        return self

    def layer_hidden(self, layer: int) -> int:
        return self.proj_size or self.layer_width(layer)

    def states(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        entries: list[tuple[str, tuple[int, ...]]] = []
        for i in range(self.num_layers):
            entries.append((f"{i}.h", (self.layer_output(i),)))
            entries.append((f"{i}.c", (self.layer_width(i) * self.directions,)))
        return entries


class GRUConfig(GatedConfig):
    """Layers of `torch.nn.GRU`, or of Cho et al. 2014; row blocks r, z, n."""

    family: ClassVar[str] = "gru"

    reset_after: bool = Field(
        True, description="The reset gate multiplies the candidate's product with h, not h itself."
    )

    @property
    def kind(self) -> GatedKind:
        return GatedKind.GRU if self.reset_after else GatedKind.GRU_RESET_BEFORE


class RNNConfig(GatedConfig):
    """Layers of `torch.nn.RNN`."""

    family: ClassVar[str] = "rnn"

    nonlinearity: Literal["tanh", "relu"] = "tanh"

    @property
    def kind(self) -> GatedKind:
        return GatedKind.RNN_RELU if self.nonlinearity == "relu" else GatedKind.RNN_TANH


class ATRConfig(GatedConfig):
    """Layers of additions and subtractions: p = W_ih x + b_ih, q = W_hh h + b_hh."""

    family: ClassVar[str] = "atr"

    activation: Literal["tanh", "identity"] = "tanh"

    @property
    def kind(self) -> GatedKind:
        return GatedKind.ATR_TANH if self.activation == "tanh" else GatedKind.ATR_IDENTITY
