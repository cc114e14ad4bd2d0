"""How exactly a network's results agree for other splits of an input and other batches."""

from collections.abc import Sequence

import torch

from sruserve.kernels import (
    FusedGatedLayer,
    GatedLayer,
    Layer,
    SRUppLayer,
    has_packed_linear,
    kernel_name,
    uses_panels,
)
from sruserve.kernels.dispatch import INTERPRETER

_EXACT = "bit for bit"


def is_exact(description: str) -> bool:
    """Whether a description of `exactness` promises the same bits for any split and any batch."""
    return description.startswith(_EXACT)


def exactness(layers: Sequence[Layer], dtype: torch.dtype, device: torch.device, fast: bool) -> str:
    """Describe a network of the compiled kernels, in one clause."""
    # Their steps have matrix products, whose rows in plain torch depend on the batch.
    gated = any(isinstance(layer, GatedLayer | FusedGatedLayer) for layer in layers)
    if device.type != "cpu":
        if fast:
            return "to rounding, not bit for bit: fast kernels depend on the number of rows"
        if gated:
            return "to rounding, not bit for bit: torch and cuDNN sum by the number of rows"
        return f"{_EXACT} by design on this kind of device: any split, any batch"
    if kernel_name(device) == INTERPRETER:
        return "1e-5 (Triton's interpreter, for tests)"
    if kernel_name(device) == "reference" and (gated or _attends(layers)):
        return "1e-5 (without the compiled kernel, these layers' products depend on the batch)"
    if has_packed_linear() or uses_panels(dtype):
        return f"{_EXACT}: any split, any batch"
    return "1e-5 (this build of torch has no packed products)"


def _attends(layers: Sequence[Layer]) -> bool:
    return any(isinstance(layer, SRUppLayer) for layer in layers)
