"""The SRU layer of releases 2.1.9-2.6.0 (Lei et al. 2018), weights repacked once."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from sruserve.kernels import Product, RaggedBatch, sru_scan
from sruserve.model.config import ResetGate, SRUConfig


def sru_shapes(config: SRUConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer's state dict, in the releases' names and shapes."""
    inputs, outputs = config.layer_input(layer), config.output_size
    blocks = 4 if config.has_skip_term and inputs != outputs else 3
    projected = 0 < config.projection_size < min(inputs, outputs)
    shapes: dict[str, tuple[int, ...]] = {}
    if projected:
        shapes["weight_proj"] = (inputs, config.projection_size)
    shapes["weight"] = (config.projection_size if projected else inputs, outputs * blocks)
    shapes["weight_c"] = shapes["bias"] = (2 * outputs,)
    shapes["scale_x"] = (1,)
    if config.layer_norm:
        normed = outputs if config.normalize_after else inputs
        shapes["layer_norm.weight"] = shapes["layer_norm.bias"] = (normed,)
    return shapes


class SRUCell:
    """One layer: norm, product, recurrence.

    tensors: the layer's state dict, as `sru_shapes` names it.
    column: where its `c` begins in a state row.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], config: SRUConfig, column: int, dtype: torch.dtype
    ) -> None:
        outputs = config.output_size
        self._projection = None
        if "weight_proj" in tensors:
            self._projection = Product(tensors["weight_proj"].T, None, dtype)
        weight = tensors["weight"]
        # Columns run (direction, channel, block) with the block fastest; the kernel reads planes.
        planes = weight.view(len(weight), outputs, -1).permute(2, 1, 0)
        self._product = Product(planes.reshape(-1, len(weight)), None, dtype)
        self._weight_c = tensors["weight_c"].float().view(2, outputs).contiguous()
        self._bias = tensors["bias"].float().view(2, outputs).contiguous()
        self._highway_is_input = config.has_skip_term and len(planes) == 3
        self._scale = float(tensors["scale_x"]) if config.rescale else 1.0
        self._norm = None
        if config.layer_norm:
            norm = (tensors["layer_norm.weight"].to(dtype), tensors["layer_norm.bias"].to(dtype))
            self._norm = norm
        self._norm_after = config.normalize_after
        self._column = column
        self._tanh = config.use_tanh
        self._updated_reset = config.reset_gate is ResetGate.UPDATED
        self._backward_from = config.hidden_size if config.bidirectional else None

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Compute h (rows, output_size) from x (rows, input); `batch.states` moves on."""
        z = x if self._norm is None or self._norm_after else self._normed(x)
        if self._projection is not None:
            z = self._projection(z)
        h = sru_scan(
            self._product(z),
            x if self._highway_is_input else None,
            self._weight_c,
            self._bias,
            batch,
            self._column,
            scale=self._scale,
            tanh=self._tanh,
            updated_reset=self._updated_reset,
            backward_from=self._backward_from,
        )
        return self._normed(h) if self._norm is not None and self._norm_after else h

    def _normed(self, x: Tensor) -> Tensor:
        assert self._norm is not None
        return F.layer_norm(x, x.shape[1:], *self._norm)
