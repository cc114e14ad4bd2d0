"""Call the compiled matrix product, `matrix.h`, through ctypes and without the GIL."""

import torch
from torch import Tensor

import sruserve.kernels.cpu.library as cpu
from sruserve.kernels.panel_weight import PanelWeight


def cpu_product(x: Tensor, weight: PanelWeight) -> Tensor:
    """Multiply x (rows, inputs), float32, by a weight of one gate; returns (rows, outputs).

    Each number is one chain of FMAs over the inputs in order, from the bias on. So its bits depend
    only on its own row and the instruction set.
    """
    rows, inputs, outputs = x.shape[0], weight.inputs, weight.outputs
    if not (x.is_cpu and x.dtype is torch.float32 and x.shape[1] == inputs):
        raise ValueError(
            f"product: x must be (rows, {inputs}), float32, on the CPU; it is {tuple(x.shape)} of "
            f"{x.dtype}"
        )
    x = x.contiguous()
    out = torch.empty(rows, outputs)
    cpu.call(
        "sru_product",
        cpu.MATRIX.pack(
            weight.panels.data_ptr(),
            0 if weight.bias is None else weight.bias.data_ptr(),
            x.data_ptr(),
            out.data_ptr(),
            rows,
            inputs,
            outputs,
            torch.get_num_threads(),
        ),
    )
    return out
