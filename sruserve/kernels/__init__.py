"""The operations that models are made of. Each takes the fastest kernel for its tensors."""

from sruserve.kernels.dispatch import kernel_name, sru_scan, uses_triton
from sruserve.kernels.layer import Layer, SRULayer, StepLayer
from sruserve.kernels.product import Multiply, make_product, packed_products, padded_rows
from sruserve.kernels.ragged import RaggedBatch, single

__all__ = [
    "Layer",
    "Multiply",
    "RaggedBatch",
    "SRULayer",
    "StepLayer",
    "kernel_name",
    "make_product",
    "packed_products",
    "padded_rows",
    "single",
    "sru_scan",
    "uses_triton",
]
