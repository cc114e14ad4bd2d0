"""What is fixed about a gated layer's recurrence: its kind, and its recurrent weights."""

from dataclasses import dataclass, replace
from enum import IntEnum

import torch.nn.functional as F
from torch import Tensor

GROUP = 16  # columns; as in cpu_step.h, which `cpu.py` checks


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
    """One product of a step, laid out so that all gates of a few channels lie side by side.

    panels: (panels, inputs, gates, channels), of the compute dtype.
    bias: (panels, gates, channels), float32, or None.
    outputs: channels of a gate; those of the last panel that are beyond are padding.
    kept: what `plain` returns, where no kernel reads the panels.
    """

    panels: Tensor
    bias: Tensor | None
    outputs: int
    kept: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, gates: int) -> "Recurrent":
        """Lay out a weight (gates * outputs, inputs) and a bias (gates * outputs), once."""
        blocks = weight.reshape(gates, -1, weight.shape[1])
        channels = GROUP * (3 if gates == 3 else 4) // gates
        outputs = blocks.shape[1]
        padding = -outputs % channels
        panels = F.pad(blocks, (0, 0, 0, padding)).view(gates, -1, channels, weight.shape[1])
        laid_out = None
        if bias is not None:
            biases = F.pad(bias.float().reshape(gates, -1), (0, padding))
            laid_out = biases.view(gates, -1, channels).transpose(0, 1).contiguous()
        made = cls(panels.permute(1, 3, 0, 2).contiguous(), laid_out, outputs)
        return made if weight.is_cpu else replace(made, kept=made.plain())

    @property
    def inputs(self) -> int:
        return self.panels.shape[1]

    def plain(self) -> tuple[Tensor, Tensor]:
        """The weight (gates, inputs, outputs) and the bias (gates, 1, outputs), float32."""
        if self.kept is not None:
            return self.kept
        weight = self.panels.float().permute(2, 1, 0, 3).flatten(2)[..., : self.outputs]
        if self.bias is None:
            return weight, weight.new_zeros(len(weight), 1, self.outputs)
        return weight, self.bias.transpose(0, 1).flatten(1)[:, None, : self.outputs]


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
