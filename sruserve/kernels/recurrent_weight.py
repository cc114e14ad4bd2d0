"""The fixed description of a gated layer's recurrence: its kind and its recurrent weights."""

from dataclasses import dataclass, replace
from enum import IntEnum

import torch.nn.functional as F
from torch import Tensor

GROUP = 16  # columns, as in cpu/step.h; `cpu/library.py` checks that both agree


class GatedKind(IntEnum):
    """The recurrences whose step needs a matrix product; see `reference_gated_scan`."""

    LSTM = 0
    GRU = 1
    GRU_RESET_BEFORE = 2
    RNN_TANH = 3
    RNN_RELU = 4
    ATR_TANH = 5
    ATR_IDENTITY = 6

    @property
    def blocks(self) -> int:
        """Number of planes in the input's part of a step, each as wide as the layer."""
        return {GatedKind.LSTM: 4, GatedKind.GRU: 3, GatedKind.GRU_RESET_BEFORE: 3}.get(self, 1)


@dataclass(frozen=True, slots=True)
class PackedRecurrentWeight:
    """The weight of one matrix product of a step, packed so that a channel's gates are adjacent.

    panels: (panels, inputs, gates, channels), of the compute dtype.
    bias: (panels, gates, channels), float32, or None.
    outputs: channels of a gate; the last panel's channels after them are padding.
    unpacked: the result of `plain`, stored on devices where no kernel reads the panels.
    """

    panels: Tensor
    bias: Tensor | None
    outputs: int
    unpacked: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, gates: int) -> "PackedRecurrentWeight":
        """Pack a weight (gates * outputs, inputs) and a bias (gates * outputs)."""
        blocks = weight.reshape(gates, -1, weight.shape[1])
        channels = GROUP * (3 if gates == 3 else 4) // gates
        outputs = blocks.shape[1]
        padding = -outputs % channels
        panels = F.pad(blocks, (0, 0, 0, padding)).view(gates, -1, channels, weight.shape[1])
        packed_bias = None
        if bias is not None:
            biases = F.pad(bias.float().reshape(gates, -1), (0, padding))
            packed_bias = biases.view(gates, -1, channels).transpose(0, 1).contiguous()
        packed = cls(panels.permute(1, 3, 0, 2).contiguous(), packed_bias, outputs)
        return packed if weight.is_cpu else replace(packed, unpacked=packed.plain())

    @property
    def inputs(self) -> int:
        return self.panels.shape[1]

    def plain(self) -> tuple[Tensor, Tensor]:
        """Return the weight (gates, inputs, outputs) and the bias (gates, 1, outputs), float32."""
        if self.unpacked is not None:
            return self.unpacked
        weight = self.panels.float().permute(2, 1, 0, 3).flatten(2)[..., : self.outputs]
        if self.bias is None:
            return weight, weight.new_zeros(len(weight), 1, self.outputs)
        return weight, self.bias.transpose(0, 1).flatten(1)[:, None, : self.outputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedCell:
    """One direction of a gated layer: everything that is fixed when a model is loaded.

    first: the weight that multiplies h in each step.
    second: the candidate's weight of a GRU that resets before the product, or the projection of an
        LSTM with `proj_size`; None for the others.
    column: first column of h in a state row. cell_column: first column of an LSTM's c.
    backward: whether the direction runs from the last row to the first.
    """

    kind: GatedKind
    first: PackedRecurrentWeight
    column: int
    second: PackedRecurrentWeight | None = None
    cell_column: int = 0
    backward: bool = False

    @property
    def width(self) -> int:
        """Number of channels of each gate."""
        return self.first.outputs

    @property
    def outputs(self) -> int:
        """Number of channels of h."""
        return self.first.inputs
