"""Layers over rows compute what torch's modules compute, with bits that depend on the row alone."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from sruserve.model.cells.stack import Builder
from sruserve.model.heads.row_layers import (
    RowLayers,
    RowMap,
    make_layers,
    output_width,
    shapes_of,
    widest,
)

WIDTH = 13
LAYERS: TypeAdapter[tuple[Any, ...]] = TypeAdapter(RowLayers)
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softplus": F.softplus,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
}
MLP: list[dict[str, Any]] = [
    {"type": "layer_norm", "eps": 1e-3},
    {"type": "linear", "size": 40},
    {"type": "activation", "function": "gelu"},
    {"type": "residual", "layers": [{"type": "linear", "size": 40, "bias": False}]},
    {"type": "scale"},
    {"type": "select", "ranges": [[30, 40], [0, 5]]},
    {"type": "activation", "function": "silu"},
]


def read(*layers: dict[str, Any]) -> tuple[Any, ...]:
    return LAYERS.validate_python(layers)


def built(
    layers: Sequence[Any], weights: dict[str, Tensor], dtype: torch.dtype = torch.float32
) -> RowMap:
    row_map = make_layers(layers, weights, "head.", Builder(dtype, torch.device("cpu")))
    assert row_map is not None
    return row_map


def random_weights(layers: Sequence[Any], seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = shapes_of(layers, WIDTH, "head.")
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_activation_is_torchs_own(name: str) -> None:
    (layer,) = read({"type": "activation", "function": name})
    generator = torch.Generator().manual_seed(4)
    drawn = torch.randn(500, WIDTH, generator=generator) * 5
    x = torch.cat((drawn, torch.linspace(-200, 200, 40 * WIDTH).view(40, -1)))
    torch.testing.assert_close(built([layer], {})(x), FUNCTIONS[name](x), atol=2e-6, rtol=1e-6)


def test_slopes_are_those_of_torch() -> None:
    x = torch.randn(9, WIDTH)
    leaky, elu = read(
        {"type": "activation", "function": "leaky_relu", "slope": 0.3},
        {"type": "activation", "function": "elu", "slope": 0.7},
    )
    torch.testing.assert_close(built([leaky], {})(x), F.leaky_relu(x, 0.3))
    torch.testing.assert_close(built([elu], {})(x), F.elu(x, 0.7))


def test_a_batch_norm_at_inference_is_a_scale() -> None:
    norm = nn.BatchNorm1d(WIDTH).eval()
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            assert tensor is not None
            tensor.uniform_(0.5, 2)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    weights = {
        "head.0.mean": norm.running_mean,
        "head.0.weight": norm.weight.detach() / (norm.running_var + norm.eps).sqrt(),
        "head.0.bias": norm.bias.detach(),
    }
    x = torch.randn(7, WIDTH)
    torch.testing.assert_close(built(read({"type": "scale"}), weights)(x), norm(x))


def test_a_scale_of_features_far_from_zero_loses_nothing() -> None:
    x = 1e6 + torch.randn(20, WIDTH)
    mean, std = x.double().mean(0), x.double().std(0)
    weights = {
        "head.0.mean": mean.float(),
        "head.0.weight": (1 / std).float(),
        "head.0.bias": torch.zeros(WIDTH),
    }
    expected = (x.double() - mean.float().double()) / std
    scaled = built(read({"type": "scale"}), weights)(x)
    torch.testing.assert_close(scaled.double(), expected, atol=1e-5, rtol=1e-5)


def test_layers_run_in_order_and_a_residual_adds_its_input() -> None:
    layers = read(*MLP)
    w = random_weights(layers)
    assert output_width(layers, WIDTH) == 15
    assert widest(layers) == 40
    x = torch.randn(6, WIDTH)
    h = F.layer_norm(x, (WIDTH,), w["head.0.weight"], w["head.0.bias"], 1e-3)
    h = F.gelu(h @ w["head.1.weight"].T + w["head.1.bias"])
    h = h + h @ w["head.3.0.weight"].T
    h = (h - w["head.4.mean"]) * w["head.4.weight"] + w["head.4.bias"]
    expected = F.silu(torch.cat((h[:, 30:40], h[:, :5]), 1))
    torch.testing.assert_close(built(layers, w)(x), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@settings(max_examples=25)
@given(first=st.integers(0, 200), count=st.integers(1, 60))
def test_a_rows_bits_depend_on_the_row_alone(dtype: torch.dtype, first: int, count: int) -> None:
    functions: list[dict[str, Any]] = [
        {"type": "activation", "function": name} for name in FUNCTIONS
    ]
    layers = read(*MLP, *functions)
    row_map = built(layers, random_weights(layers), dtype)
    x = torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(3)).to(dtype)
    if dtype is torch.bfloat16:  # as callers pad rows for oneDNN
        count = -(-count // 64) * 64
        first = min(first, 256 - count)
    part = row_map(x[first : first + count].clone())
    assert torch.equal(part, row_map(x)[first : first + count])
    assert part.dtype is dtype


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        ({"type": "softmax"}, "softmax"),
        ({"type": "activation", "function": "relu", "slope": 1.0}, "relu has no slope"),
        ({"type": "residual", "layers": []}, "at least 1"),
        ({"type": "linear", "size": 0}, "greater than or equal to 1"),
        ({"type": "layer_norm", "eps": 0.0}, "greater than 0"),
        ({"size": 3}, "type"),
    ],
    ids=str,
)
def test_an_invalid_layer_is_refused(layer: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        read(layer)


def test_layers_that_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="a width of 13 into 4"):
        output_width(read({"type": "residual", "layers": [{"type": "linear", "size": 4}]}), WIDTH)
    wide = [{"type": "select", "ranges": [[0, 13 * 1000**i]] * 1000} for i in range(2)]
    with pytest.raises(ValueError, match="over the limit of 65,536"):
        output_width(read(*wide), WIDTH)
    with pytest.raises(ValueError, match="10 to 14 is no range of 13 columns"):
        output_width(read({"type": "select", "ranges": [[10, 14]]}), WIDTH)
