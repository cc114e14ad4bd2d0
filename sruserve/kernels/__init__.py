"""The operations that models are made of. Each takes the fastest kernel for its tensors."""

from sruserve.kernels.dispatch import kernel_name, sru_scan, uses_triton
from sruserve.kernels.layer import SRULayer
from sruserve.kernels.product import Multiply, make_product, packed_products
from sruserve.kernels.ragged import RaggedBatch, single

__all__ = [
    "Multiply",
    "RaggedBatch",
    "SRULayer",
    "kernel_name",
    "make_product",
    "packed_products",
    "single",
    "sru_scan",
    "uses_triton",
]
