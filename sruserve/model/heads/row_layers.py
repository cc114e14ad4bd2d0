"""Layers that map each row by itself: around the stack, as people train them."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from sruserve.kernels import Norm
from sruserve.model.cells.stack import MAX_WIDTH, Builder, Shapes, Width

RowMap = Callable[[Tensor], Tensor]
"""Maps rows (rows, in) to (rows, out) of the same dtype; a row's bits depend on it alone."""

_MAX_LAYERS = 64
_MAX_RANGES = 1024


class _RowLayer(BaseModel):
    """A layer as `config.json` describes it; a subclass for each type."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def output_width(self, width: int) -> int:
        """Return the width of its output for inputs of `width`; raises ValueError."""
        return width

    def shapes(self, width: int) -> Shapes:
        """Return its tensors' shapes for inputs of `width`."""
        del width
        return {}

    @abstractmethod
    def make(self, tensors: Mapping[str, Tensor], builder: Builder) -> RowMap:
        """Build the layer from the tensors that `shapes` names."""


class LinearLayer(_RowLayer):
    """x W^T + b, as `torch.nn.Linear`."""

    type: Literal["linear"]
    size: Width = Field(description="Width of its output.")
    bias: bool = True

    def output_width(self, width: int) -> int:
        del width
        return self.size

    def shapes(self, width: int) -> Shapes:
        shapes: Shapes = {"weight": (self.size, width)}
        return shapes | ({"bias": (self.size,)} if self.bias else {})

    def make(self, tensors: Mapping[str, Tensor], builder: Builder) -> RowMap:
        return builder.linear(tensors["weight"], tensors.get("bias"))


class LayerNormLayer(_RowLayer):
    """`torch.nn.LayerNorm` over a row."""

    type: Literal["layer_norm"]
    eps: float = Field(1e-5, gt=0, le=1, description="What is added to the variance.")

    def shapes(self, width: int) -> Shapes:
        return {"weight": (width,), "bias": (width,)}

    def make(self, tensors: Mapping[str, Tensor], builder: Builder) -> RowMap:
        weight, bias = builder.put(tensors["weight"]), builder.put(tensors["bias"])
        return Norm(weight, bias, epsilon=self.eps)


class ScaleLayer(_RowLayer):
    """(x - mean) * weight + bias: batch norm at inference, or a normalizer of features."""

    type: Literal["scale"]

    def shapes(self, width: int) -> Shapes:
        return dict.fromkeys(("mean", "weight", "bias"), (width,))

    def make(self, tensors: Mapping[str, Tensor], builder: Builder) -> RowMap:
        mean, weight, bias = (builder.exact(tensors[name]) for name in ("mean", "weight", "bias"))

        def scale(x: Tensor) -> Tensor:
            return (x.float() - mean).mul_(weight).add_(bias).to(x.dtype)

        return scale


# `torch.sigmoid` and others compute the last numbers of a tensor by another formula than the rest.
# These are made of functions that do not, so a number has the same bits at every place.
_FUNCTIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "relu": lambda x, _: x.relu(),
    "gelu": lambda x, _: x * (-x * 0.5**0.5).erfc() * 0.5,
    "gelu_tanh": lambda x, _: (
        x * (1 + ((2 / torch.pi) ** 0.5 * (x + 0.044715 * x * x * x)).tanh()) * 0.5
    ),
    "tanh": lambda x, _: x.tanh(),
    "sigmoid": lambda x, _: sigmoid(x),
    "silu": lambda x, _: x * sigmoid(x),
    "softplus": lambda x, _: x.relu() + (-x.abs()).exp().log1p(),
    "leaky_relu": lambda x, slope: torch.where(x > 0, x, x * slope),
    "elu": lambda x, slope: torch.where(x > 0, x, x.expm1() * slope),
}
_SLOPED = ("leaky_relu", "elu")


def sigmoid(x: Tensor) -> Tensor:
    """Compute 1 / (1 + exp(-x)), with bits that do not depend on a number's place."""
    return 1 / (1 + (-x).exp())


class ActivationLayer(_RowLayer):
    """An activation function, number by number."""

    type: Literal["activation"]
    function: Literal[
        "relu", "gelu", "gelu_tanh", "tanh", "sigmoid", "silu", "softplus", "leaky_relu", "elu"
    ]
    slope: float | None = Field(
        None,
        allow_inf_nan=False,
        description="Slope of leaky_relu below 0 (default 0.01), or alpha of elu (default 1).",
    )

    @model_validator(mode="after")
    def _has_its_own_slope(self) -> "ActivationLayer":
        if self.slope is not None and self.function not in _SLOPED:
            raise ValueError(f"{self.function} has no slope; only {' and '.join(_SLOPED)} have one")
        return self

    def make(self, tensors: Mapping[str, Tensor], builder: Builder) -> RowMap:
        del tensors, builder
        function, slope = _FUNCTIONS[self.function], self.slope
        if slope is None:
            slope = 0.01 if self.function == "leaky_relu" else 1.0
        return lambda x: function(x.float(), slope).to(x.dtype)


class SelectLayer(_RowLayer):
    """Some columns, in a new order."""

    type: Literal["select"]
    ranges: tuple[tuple[int, int], ...] = Field(
        min_length=1,
        max_length=_MAX_RANGES,
        description="First column and end of each range; their columns are concatenated.",
    )

    def output_width(self, width: int) -> int:
        for begin, end in self.ranges:
            if not 0 <= begin < end <= width:
                raise ValueError(f"select: {begin} to {end} is no range of {width} columns")
        if (columns := sum(end - begin for begin, end in self.ranges)) > MAX_WIDTH:
            raise ValueError(f"select: {columns:,} columns are over the limit of {MAX_WIDTH:,}")
        return columns

    def make(self, tensors: Mapping[str, Tensor], builder: Builder) -> RowMap:
        del tensors
        columns = torch.cat([torch.arange(begin, end) for begin, end in self.ranges])
        columns = columns.to(builder.device)
        return lambda x: x.index_select(1, columns)


class ResidualLayer(_RowLayer):
    """x + f(x), where f is a list of layers."""

    type: Literal["residual"]
    layers: "RowLayers" = Field(min_length=1)

    def output_width(self, width: int) -> int:
        if (inner := output_width(self.layers, width)) != width:
            raise ValueError(f"residual: its layers turn a width of {width} into {inner}")
        return width

    def shapes(self, width: int) -> Shapes:
        return shapes_of(self.layers, width, "")

    def make(self, tensors: Mapping[str, Tensor], builder: Builder) -> RowMap:
        inner = make_layers(self.layers, tensors, "", builder)
        assert inner is not None
        return lambda x: x + inner(x)


RowLayer = Annotated[
    LinearLayer | LayerNormLayer | ScaleLayer | ActivationLayer | SelectLayer | ResidualLayer,
    Field(discriminator="type"),
]
RowLayers = Annotated[tuple[RowLayer, ...], Field(max_length=_MAX_LAYERS, fail_fast=True)]
ResidualLayer.model_rebuild()


def output_width(layers: Sequence[Any], width: int) -> int:
    """Return the width after layers in order; raises ValueError if one does not fit its input."""
    for layer in layers:
        width = layer.output_width(width)
    return width


def widest(layers: Sequence[Any]) -> int:
    """Return the largest width that a layer gives a row; 0 if none gives it a new one."""
    largest = 0
    for layer in layers:
        if isinstance(layer, ResidualLayer):
            largest = max(largest, widest(layer.layers))
        elif isinstance(layer, LinearLayer):
            largest = max(largest, layer.size)
        elif isinstance(layer, SelectLayer):
            largest = max(largest, sum(end - begin for begin, end in layer.ranges))
    return largest


def shapes_of(layers: Sequence[Any], width: int, prefix: str) -> Shapes:
    """Return the tensors' shapes of layers in order, named `{prefix}{number}.{name}`."""
    shapes: Shapes = {}
    for number, layer in enumerate(layers):
        own = layer.shapes(width)
        shapes |= {f"{prefix}{number}.{name}": shape for name, shape in own.items()}
        width = layer.output_width(width)
    return shapes


def make_layers(
    layers: Sequence[Any],
    tensors: Mapping[str, Tensor],
    prefix: str,
    builder: Builder,
) -> RowMap | None:
    """Build layers in order from tensors named as in `shapes_of`; None without any."""
    maps: list[RowMap] = []
    for number, layer in enumerate(layers):
        own = f"{prefix}{number}."
        parts = {k.removeprefix(own): v for k, v in tensors.items() if k.startswith(own)}
        maps.append(layer.make(parts, builder))
    if len(maps) < 2:
        return maps[0] if maps else None

    def run(x: Tensor) -> Tensor:
        for row_map in maps:
            x = row_map(x)
        return x

    return run
