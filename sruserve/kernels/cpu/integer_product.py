"""Call the compiled product with int8 weights, `integer_matrix.h`, through ctypes."""

import torch
from torch import Tensor

import sruserve.kernels.cpu.library as cpu
from sruserve.kernels.panel_weight import GROUP
from sruserve.kernels.quantized_weight import QuantizedWeight


def integer_work(rows: int, inputs: int) -> int:
    """Return the floats of work memory for `rows` rows, whose scales and bytes are kept there."""
    return rows * (1 + -(-inputs // GROUP) * GROUP // 4)


def integer_product(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """Multiply x (rows, inputs), float32, by a weight; returns (rows, outputs).

    Each row is rounded to bytes by its own largest number, and multiplied in integers. So its bits
    depend only on itself, and are the same with any instruction set. A row that is not finite
    becomes NaN.
    """
    rows, inputs, outputs = x.shape[0], weight.inputs, weight.outputs
    if not (x.is_cpu and x.dtype is torch.float32 and x.shape[1] == inputs):
        raise ValueError(
            f"product: x must be (rows, {inputs}), float32, on the CPU; it is {tuple(x.shape)} of "
            f"{x.dtype}"
        )
    x = x.contiguous()
    out, work = torch.empty(rows, outputs), torch.empty(integer_work(rows, inputs))
    cpu.call(
        "sru_integer_product",
        cpu.INTEGER.pack(
            weight.numbers.data_ptr(),
            weight.scale.data_ptr(),
            weight.bias.data_ptr(),
            weight.correction.data_ptr(),
            inputs,
            outputs,
            x.data_ptr(),
            out.data_ptr(),
            work.data_ptr(),
            rows,
            work.numel(),
            torch.get_num_threads(),
        ),
    )
    return out
