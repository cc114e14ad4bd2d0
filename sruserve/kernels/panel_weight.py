"""Weights of matrix products in panels, which the compiled kernel reads."""

from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor

GROUP = 16  # columns, as in cpu/step.h; `cpu/library.py` checks that both agree


@dataclass(frozen=True, slots=True)
class PanelWeight:
    """The weight of a matrix product, packed so that the gates of a channel are adjacent.

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
    def of(cls, weight: Tensor, bias: Tensor | None, gates: int) -> "PanelWeight":
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
