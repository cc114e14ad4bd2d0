"""Weights of matrix products in int8, with a scale for each output: symmetric, and exact to undo.

A scale has so few bits that its products with -127 to 127 are exact in float32, and the largest
number of an output is always 127. So a weight that was quantised once is a float32 tensor like any
other, from which `QuantizedWeight.of` restores the same integers and scales, to the bit.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sruserve.kernels.panel_weight import GROUP

LARGEST = 127
MAX_INPUTS = 1 << 16  # as in cpu/integer_matrix.h: the sums of more inputs may exceed an integer
_QUAD = 4  # inputs that one instruction multiplies, as in cpu/integer.h
_SPARE_BITS = 0x7F  # of a scale's 24: its products with 7 bits are exact
_SMALLEST = 1e-30  # an output without larger weights counts as zeros


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a finite weight (outputs, inputs) to int8 with a scale for each output, float32."""
    weight = weight.float()
    largest = torch.maximum(weight.amax(1), -weight.amin(1))
    bits = (largest.double() / LARGEST).float().view(torch.int32)
    scale = (bits & ~_SPARE_BITS).view(torch.float32)
    scale[largest <= _SMALLEST] = 1.0
    rounded = (weight / scale[:, None]).round_().clamp_(-LARGEST, LARGEST)
    return rounded.to(torch.int8), scale


def is_rounded(numbers: Tensor, scale: Tensor) -> bool:
    """Whether `quantize_rows` may return int8 numbers and positive scales such as these."""
    largest = torch.maximum(numbers.amax(1), -numbers.amin(1).clamp(min=-LARGEST))
    whole = (scale.view(torch.int32) & _SPARE_BITS) == 0
    restored = scale * LARGEST
    full = (largest == LARGEST) & whole & (restored > _SMALLEST) & restored.isfinite()
    zeros = (largest == 0) & (scale == 1.0)
    return bool(((full | zeros) & (numbers.amin(1) >= -LARGEST)).all())


def dequantize_rows(numbers: Tensor, scale: Tensor) -> Tensor:
    """Return the float32 weight that int8 numbers (outputs, inputs) and their scales stand for."""
    return numbers.float() * scale[:, None]


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """The weight of a matrix product in int8, packed for the compiled kernel.

    numbers: (groups, quads of inputs, 16 outputs, 4 inputs), int8; padding is 0.
    scale, bias: (16 * groups), float32. correction: (16 * groups), int32: 128 * sum of an output's
        numbers, because the inputs are stored as bytes that are 128 too large.
    """

    numbers: Tensor
    scale: Tensor
    bias: Tensor
    correction: Tensor
    inputs: int
    outputs: int

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> "QuantizedWeight | None":
        """Pack a weight (outputs, inputs) and a bias (outputs).

        Returns None if the weight is not exactly that of int8 numbers and scales, or too wide.
        """
        outputs, inputs = weight.shape
        if inputs > MAX_INPUTS or not bool(weight.isfinite().all()):
            return None
        numbers, scale = quantize_rows(weight)
        if not torch.equal(dequantize_rows(numbers, scale), weight.float()):
            return None
        spare = -outputs % GROUP
        padded = F.pad(numbers, (0, -inputs % _QUAD, 0, spare))
        quads = padded.view(-1, GROUP, padded.shape[1] // _QUAD, _QUAD)
        own = torch.zeros(outputs) if bias is None else bias.float()
        return cls(
            quads.transpose(1, 2).contiguous(),
            F.pad(scale, (0, spare)),
            F.pad(own, (0, spare)),
            128 * padded.sum(1, dtype=torch.int32),
            inputs,
            outputs,
        )
