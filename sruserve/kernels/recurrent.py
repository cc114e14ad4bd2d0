"""What is fixed about a gated layer's recurrence: its kind, and its recurrent weights."""

from dataclasses import dataclass
from enum import IntEnum

import torch
import torch.nn.functional as F
from torch import Tensor

_GROUP = 16  # columns; as in cpu_step.h


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
        """How many planes the input's part of a step has, each as wide as the layer."""
        return {GatedKind.LSTM: 4, GatedKind.GRU: 3, GatedKind.GRU_RESET_BEFORE: 3}.get(self, 1)


@dataclass(frozen=True, slots=True)
class Recurrent:
    """One product of a step: a weight whose rows are `gates` blocks of `outputs` channels.

    weight: (gates, outputs, inputs), of the compute dtype; bias: (gates, outputs), float32, or
    None. panels, panel_bias: the same for the C kernel, or None where it does not run.
    """

    weight: Tensor
    bias: Tensor | None
    panels: Tensor | None = None
    panel_bias: Tensor | None = None

    @classmethod
    def of(
        cls, weight: Tensor, bias: Tensor | None, gates: int, dtype: torch.dtype, packed: bool
    ) -> "Recurrent":
        """Lay out a weight (gates * outputs, inputs) and a bias (gates * outputs), once."""
        blocks = weight.to(dtype).view(gates, -1, weight.shape[1]).contiguous()
        biases = None if bias is None else bias.float().view(gates, -1).contiguous()
        if not packed:
            return cls(blocks, biases)
        # A panel has all gates of the same few channels, and its columns lie side by side.
        channels = _GROUP * (3 if gates == 3 else 4) // gates
        padding = -blocks.shape[1] % channels
        panels = F.pad(blocks, (0, 0, 0, padding)).unflatten(1, (-1, channels))
        panel_bias = None
        if biases is not None:
            panel_bias = F.pad(biases, (0, padding)).unflatten(1, (-1, channels))
            panel_bias = panel_bias.transpose(0, 1).contiguous()
        return cls(blocks, biases, panels.permute(1, 3, 0, 2).contiguous(), panel_bias)

    @property
    def outputs(self) -> int:
        return self.weight.shape[1]

    @property
    def inputs(self) -> int:
        return self.weight.shape[2]

    def __call__(self, h: Tensor) -> Tensor:
        """Multiply h (rows, inputs), float32, into (gates, rows, outputs), float32."""
        products = h @ self.weight.float().transpose(1, 2)
        return products if self.bias is None else products + self.bias.unsqueeze(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedCell:
    """One direction of a gated layer: all of it that is fixed when a model is loaded.

    first: the product of a step with h. second: a GRU's candidate that resets first, or the
    projection of an LSTM with `proj_size`; None for the others.
    column: where h begins in a state row; cell_column: an LSTM's c.
    """

    kind: GatedKind
    first: Recurrent
    column: int
    second: Recurrent | None = None
    cell_column: int = 0
    backward: bool = False

    @property
    def width(self) -> int:
        """Channels of the gates."""
        return self.first.outputs

    @property
    def outputs(self) -> int:
        """Channels of h."""
        return self.first.inputs
