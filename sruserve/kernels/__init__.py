"""The operations that models are made of. Each takes the fastest kernel for its tensors."""

from sruserve.kernels.cell import Activation, Cell, Kind
from sruserve.kernels.dispatch import kernel_name, scan, uses_triton
from sruserve.kernels.layer import CellLayer, Layer, StepLayer
from sruserve.kernels.norm import Norm, NormKind
from sruserve.kernels.product import Multiply, make_product, packed_products, padded_rows
from sruserve.kernels.ragged import RaggedBatch, single

__all__ = [
    "Activation",
    "Cell",
    "CellLayer",
    "Kind",
    "Layer",
    "Multiply",
    "Norm",
    "NormKind",
    "RaggedBatch",
    "StepLayer",
    "kernel_name",
    "make_product",
    "packed_products",
    "padded_rows",
    "scan",
    "single",
    "uses_triton",
]
