"""The layers of a network that map each row by itself, with their tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

_RISING = {"relu", "tanh", "sigmoid", "softplus", "leaky_relu", "elu"}


@dataclass(frozen=True, eq=False, slots=True)
class Linear:
    """x W^T + b; weight (out, in), bias (out) or None."""

    type: ClassVar = "linear"
    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Norm:
    """Layer norm over the features; weight and bias (in)."""

    type: ClassVar = "layer_norm"
    weight: Tensor
    bias: Tensor
    eps: float


@dataclass(frozen=True, eq=False, slots=True)
class Scale:
    """(x - mean) * weight + bias, float64; each has (in) numbers, or one for all."""

    type: ClassVar = "scale"
    mean: Tensor
    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, eq=False, slots=True)
class Activation:
    """A function of each number, by its name in a model folder."""

    type: ClassVar = "activation"
    function: str
    slope: float | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Residual:
    """x + f(x)."""

    type: ClassVar = "residual"
    layers: tuple["Layer", ...]


@dataclass(frozen=True, eq=False, slots=True)
class Select:
    """Some columns, concatenated."""

    type: ClassVar = "select"
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False, slots=True)
class Softmax:
    """A softmax over the features, or its logarithm. It can only be the last layer."""

    type: ClassVar = "softmax"
    log: bool


Layer = Linear | Norm | Scale | Activation | Residual | Select | Softmax
Layers = tuple[Layer, ...]


def scale(weight: Tensor | float = 1.0, bias: Tensor | float = 0.0, mean: float = 0.0) -> Scale:
    """Return a `Scale` from numbers or vectors."""
    parts = (mean, weight, bias)
    return Scale(*(torch.as_tensor(part, dtype=torch.float64).reshape(-1) for part in parts))


def width_after(layers: Sequence[Layer], width: int) -> int:
    """Return the width of rows of `width` after layers."""
    for layer in layers:
        if isinstance(layer, Linear):
            width = len(layer.weight)
        elif isinstance(layer, Select):
            width = sum(end - begin for begin, end in layer.ranges)
    return width


def affine(layers: Sequence[Layer], width: int) -> tuple[Tensor, Tensor] | None:
    """Return layers over rows of `width` as one matrix (out, in) and bias (out), both float64.

    Returns None if one of them is not affine.
    """
    matrix, bias = torch.eye(width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
    for layer in layers:
        if isinstance(layer, Linear):
            weight = layer.weight.double()
            matrix, bias = weight @ matrix, weight @ bias
            bias = bias if layer.bias is None else bias + layer.bias.double()
        elif isinstance(layer, Scale):
            matrix = layer.weight[:, None] * matrix
            bias = (bias - layer.mean) * layer.weight + layer.bias
        elif isinstance(layer, Select):
            rows = columns(layer)
            matrix, bias = matrix[rows], bias[rows]
        elif isinstance(layer, Residual) and (inner := affine(layer.layers, len(bias))):
            matrix, bias = matrix + inner[0] @ matrix, bias + inner[0] @ bias + inner[1]
        else:
            return None
    return matrix, bias


def columns(layer: Select) -> Tensor:
    """Return the numbers of the columns that a `Select` reads, in order."""
    return torch.cat([torch.arange(begin, end) for begin, end in layer.ranges])


def commutes(layer: Layer, kind: str) -> bool:
    """Whether a layer may as well follow the pooling of its inputs, of a kind in a model folder."""
    if kind == "last":
        return True
    if kind == "max":
        if isinstance(layer, Activation):
            return layer.function in _RISING and (layer.slope is None or layer.slope >= 0)
        return isinstance(layer, Select)
    if isinstance(layer, Residual):
        return all(commutes(each, kind) for each in layer.layers)
    return isinstance(layer, Linear | Scale | Select)


def fused(layers: Sequence[Layer]) -> Layers:
    """Join successive scales, and successive selections, into one."""
    joined: list[Layer] = []
    for layer in layers:
        last = joined[-1] if joined else None
        if isinstance(layer, Residual):
            joined.append(Residual(fused(layer.layers)))
        elif isinstance(layer, Scale) and isinstance(last, Scale):
            shift = last.bias - layer.mean
            if not shift.any():
                joined[-1] = Scale(last.mean, last.weight * layer.weight, layer.bias)
            else:
                bias = shift * layer.weight + layer.bias
                joined[-1] = Scale(last.mean, last.weight * layer.weight, bias)
        elif isinstance(layer, Select) and isinstance(last, Select):
            joined[-1] = Select(ranges_of(columns(last)[columns(layer)].tolist()))
        else:
            joined.append(layer)
    return tuple(joined)


def ranges_of(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return columns, in order, as the fewest ranges."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    return tuple(ranges)
