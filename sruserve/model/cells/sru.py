"""The SRU layer of releases 2.1.9-2.6.0 (Lei et al. 2018), weights repacked once."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sruserve.kernels import Activation, Cell, CellLayer, Norm, make_product
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


def sru_layer(
    tensors: Mapping[str, Tensor],
    config: SRUConfig,
    column: int,
    dtype: torch.dtype,
    device: torch.device,
    fast: bool = False,
) -> CellLayer:
    """One layer, ready to run.

    tensors: the layer's state dict, as `sru_shapes` names it.
    column: where its `c` begins in a state row.
    fast: see `make_product`.
    """
    outputs = config.output_size
    projection = norm = None
    if "weight_proj" in tensors:
        projection = make_product(tensors["weight_proj"].T, None, dtype, device, fast)
    if config.layer_norm:
        norm = Norm(
            tensors["layer_norm.weight"].to(device, dtype),
            tensors["layer_norm.bias"].to(device, dtype),
        )
    weight = tensors["weight"]
    # Columns run (direction, channel, block) with the block fastest; the kernels read planes.
    planes = weight.view(len(weight), outputs, -1).permute(2, 1, 0)
    cell = Cell(
        blocks=len(planes),
        activation=Activation.TANH if config.use_tanh else Activation.IDENTITY,
        updated_reset=config.reset_gate is ResetGate.UPDATED,
        scale=float(tensors["scale_x"]) if config.rescale else 1.0,
    )
    return CellLayer(
        product=make_product(planes.reshape(-1, len(weight)), None, dtype, device, fast),
        cell=cell,
        weight_c=tensors["weight_c"].float().view(2, outputs).contiguous().to(device),
        bias=tensors["bias"].float().view(2, outputs).contiguous().to(device),
        column=column,
        projection=projection,
        norm=norm,
        norm_after=config.normalize_after,
        highway_is_input=config.has_skip_term and len(planes) == 3,
        backward_from=config.hidden_size if config.bidirectional else None,
        fast=fast,
    )
