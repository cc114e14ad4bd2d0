"""Products with int8 weights, as nodes: what `IntegerLinear` computes, in ONNX's own operators.

A row becomes bytes by its own largest number, so no row depends on another one. MatMulInteger then
multiplies bytes by weights, with exact sums. Weights are bytes, too, 128 above their int8 numbers:
products of bytes and int8 saturate in 16 bits on processors of x86 without VNNI.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from sruserve.kernels.quantized_weight import LARGEST, MAX_INPUTS, dequantize_rows, quantize_rows

if TYPE_CHECKING:
    from sruserve.export.onnx.graph import Op, Value

ZERO_BYTE = np.array(128, np.uint8)  # that of the number 0
# Of an output's largest number, between runtimes: where numbers differ in the last bit, they may
# round to different bytes, and all that follows moves by what int8 itself costs.
INTEGER_TOLERANCE = 0.05
_SMALLEST = 1e-30  # a row without larger numbers becomes zeros
_FLOAT = ir.DataType.FLOAT


class RoundedWeight(NamedTuple):
    """Bytes, 128 above int8 numbers, (outputs, inputs), and a float32 scale for each output."""

    numbers: Tensor
    scale: Tensor


class RoundedRows(NamedTuple):
    """Rows of bytes, 128 above their numbers, (rows, n), and the scale of each row, (rows, 1)."""

    numbers: "Value"
    scale: "Value"


def rounded(weight: Tensor) -> RoundedWeight | None:
    """Return what a weight was restored from; None if it never was int8.

    weight: (outputs, inputs), float32. See `QuantizedWeight.of`.
    """
    if weight.shape[1] > MAX_INPUTS or not bool(weight.isfinite().all()):
        return None
    numbers, scale = quantize_rows(weight)
    if not torch.equal(dequantize_rows(numbers, scale), weight):
        return None
    return RoundedWeight((numbers.to(torch.int16) + int(ZERO_BYTE)).to(torch.uint8), scale)


def round_rows(op: "Op", x: "Value", zero: "Value") -> RoundedRows:
    """Round rows x (rows, n), each by its largest number.

    zero: `ZERO_BYTE`. The scale of a row that is not finite is NaN: in some runtimes the largest
    number of a row does not show its NaN, but the sum does.
    """
    sizes = op.Abs(x)
    finite = op.Mul(op.ReduceSum(sizes, [-1], keepdims=0), 0.0)  # 0, or NaN
    largest = op.Max(op.ReduceMax(sizes, [-1], keepdims=0), _SMALLEST)
    scale = op.Add(op.Mul(largest, 1 / LARGEST), finite)
    zeros = op.Expand(zero, op.Shape(scale))
    return RoundedRows(op.QuantizeLinear(x, scale, zeros, axis=0), op.Unsqueeze(scale, [-1]))


def multiply(
    op: "Op", rows: RoundedRows, zero: "Value", weight: "Value", scale: "Value"
) -> "Value":
    """Multiply rows by the bytes of a weight (n, outputs) with scales (outputs)."""
    sums = op.Cast(op.MatMulInteger(rows.numbers, weight, zero, zero), to=_FLOAT)
    return op.Mul(op.Mul(sums, rows.scale), scale)


def restore_rows(op: "Op", table: "Value", scale: "Value", ids: "Value") -> "Value":
    """Look up ids (...) in the bytes of a table (n, width) with scales (n); (..., width)."""
    rows = op.Sub(op.Cast(op.Gather(table, ids), to=_FLOAT), float(ZERO_BYTE))
    return op.Mul(rows, op.Unsqueeze(op.Gather(scale, ids), [-1]))
