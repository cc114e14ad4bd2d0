"""The operations that models are made of. Each takes the fastest kernel for its tensors."""

from sruserve.kernels.attention import Attention
from sruserve.kernels.cell import Activation, Cell, Kind
from sruserve.kernels.dispatch import kernel_name, scan, uses_triton
from sruserve.kernels.fused_gated import FusedGatedLayer
from sruserve.kernels.gated import GatedLayer
from sruserve.kernels.gated_cell import GatedCell, GatedKind
from sruserve.kernels.layer import CellLayer, Layer, StepLayer
from sruserve.kernels.linear import (
    LinearOp,
    make_linear,
    padded_rows,
    uses_panels,
)
from sruserve.kernels.norm import Norm, NormKind
from sruserve.kernels.panel_weight import PanelWeight
from sruserve.kernels.ragged import RaggedBatch, single
from sruserve.kernels.srupp import SRUppLayer
from sruserve.kernels.torch_members import has_packed_linear

__all__ = [
    "Activation",
    "Attention",
    "Cell",
    "CellLayer",
    "FusedGatedLayer",
    "GatedCell",
    "GatedKind",
    "GatedLayer",
    "Kind",
    "Layer",
    "LinearOp",
    "Norm",
    "NormKind",
    "PanelWeight",
    "RaggedBatch",
    "SRUppLayer",
    "StepLayer",
    "has_packed_linear",
    "kernel_name",
    "make_linear",
    "padded_rows",
    "scan",
    "single",
    "uses_panels",
    "uses_triton",
]
