"""The operations that models are made of. Each takes the fastest kernel for its tensors."""

from sruserve.kernels.attention import Attention
from sruserve.kernels.cell import Activation, Cell, Kind
from sruserve.kernels.dispatch import kernel_name, scan, uses_triton
from sruserve.kernels.gated import GatedLayer
from sruserve.kernels.layer import CellLayer, Layer, StepLayer
from sruserve.kernels.norm import Norm, NormKind
from sruserve.kernels.product import Multiply, make_product, packed_products, padded_rows
from sruserve.kernels.ragged import RaggedBatch, single
from sruserve.kernels.recurrent import GatedCell, GatedKind, Recurrent
from sruserve.kernels.srupp import SRUppLayer

__all__ = [
    "Activation",
    "Attention",
    "Cell",
    "CellLayer",
    "GatedCell",
    "GatedKind",
    "GatedLayer",
    "Kind",
    "Layer",
    "Multiply",
    "Norm",
    "NormKind",
    "RaggedBatch",
    "Recurrent",
    "SRUppLayer",
    "StepLayer",
    "kernel_name",
    "make_product",
    "packed_products",
    "padded_rows",
    "scan",
    "single",
    "uses_triton",
]
