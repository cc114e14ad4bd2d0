"""Weights that a model folder stores as int8 numbers and a scale for each output."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from sruserve.kernels.quantized_weight import dequantize_rows, is_rounded, quantize_rows
from sruserve.model.cells.stack import Shapes
from sruserve.model.config import ModelConfig
from sruserve.model.errors import CheckpointError
from sruserve.model.network import network_shapes

_AROUND = re.compile(r"(embedding|output)\.(\d+\.)?weight|output\.latent\.weight")


def output_axes(config: ModelConfig) -> dict[str, int]:
    """Return the tensors that may be int8, and the axis with a scale for each place, by name.

    These are the weights that multiply whole inputs, the embedding's rows and the head's outputs.
    """
    axes = {f"rnn.{name}": axis for name, axis in config.rnn.products().items()}
    return axes | {name: 0 for name in network_shapes(config) if _AROUND.fullmatch(name)}


def stored_shapes(config: ModelConfig) -> Shapes:
    """Return the shapes of the tensors in a folder's file: `network_shapes` and the scales."""
    shapes = network_shapes(config)
    if config.weights is None:
        return shapes
    return shapes | {_scale(name): (shapes[name][a],) for name, a in output_axes(config).items()}


def stored_dtypes(config: ModelConfig) -> dict[str, torch.dtype]:
    """Return the dtypes of the tensors that are int8, and of their scales."""
    if config.weights is None:
        return {}
    axes = output_axes(config)
    return dict.fromkeys(axes, torch.int8) | dict.fromkeys(map(_scale, axes), torch.float32)


def stored_tensors(config: ModelConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Round a network's tensors as its config says; raises `CheckpointError` if one is not finite.

    tensors: named as in `network_shapes`. Tensors that `restored_tensors` returned become the
    same int8 numbers and scales again.
    """
    stored = dict(tensors)
    if config.weights is None:
        return stored
    for name, axis in output_axes(config).items():
        if not bool(tensors[name].float().isfinite().all()):
            raise CheckpointError(
                f"{name} holds NaN or infinity, which int8 cannot express: correct the checkpoint"
            )
        numbers, stored[_scale(name)] = quantize_rows(_rows(tensors[name], axis))
        stored[name] = _rows(numbers, axis).contiguous()
    return stored


def restored_tensors(
    config: ModelConfig, stored: Mapping[str, Tensor], source: str
) -> dict[str, Tensor]:
    """Return a network's tensors, named as in `network_shapes`; int8 weights become float32.

    Raises `CheckpointError` for numbers and scales that `stored_tensors` never writes.
    """
    tensors = dict(stored)
    if config.weights is None:
        return tensors
    for name, axis in output_axes(config).items():
        scale = tensors.pop(_scale(name))
        if not bool((scale.isfinite() & (scale > 0)).all()):
            raise CheckpointError(f"{source}: {_scale(name)} must hold positive, finite numbers")
        rows = _rows(stored[name], axis)
        if not is_rounded(rows, scale):
            raise CheckpointError(
                f"{source}: {name} and {_scale(name)} are not as `sruserve export quantize` writes "
                "them: every output's largest number must be 127 or -127, and its scale has 17 bits"
            )
        tensors[name] = _rows(dequantize_rows(rows, scale), axis).contiguous()
    return tensors


def _rows(tensor: Tensor, axis: int) -> Tensor:
    """Return a matrix with outputs as rows from one with outputs on `axis`, or the reverse."""
    return tensor.T if axis else tensor


def _scale(name: str) -> str:
    return f"{name}.scale"
