"""Weights in one block for cuDNN, which `flatten_parameters` makes of all dtypes but bfloat16."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.backends.cudnn import rnn

from sruserve.kernels.flat_weights import flatten_weights


@pytest.fixture
def flattened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls of cuDNN's operator, without a GPU."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(torch, "_cudnn_rnn_flatten_weight", lambda *args: calls.append(args))
    monkeypatch.setattr(rnn, "get_cudnn_mode", {"LSTM": 2}.get)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    return calls


def on_gpu(dtype: torch.dtype, **options: Any) -> torch.nn.LSTM:
    """A module for which cuDNN's weights have shapes and a device, but no memory."""
    module = torch.nn.LSTM(3, 8, dtype=dtype, **options)
    with FakeTensorMode():
        module._flat_weights = [
            torch.empty(each.shape, dtype=dtype, device="cuda") for each in module.parameters()
        ]
    return module


@pytest.mark.parametrize(
    ("options", "weights", "per_layer"),
    [
        ({}, 4, 4),
        ({"bias": False, "num_layers": 2}, 4, 2),
        ({"proj_size": 5, "bidirectional": True}, 10, 5),
    ],
)
def test_bfloat16_weights_are_given_to_cudnn_as_torch_gives_those_of_other_dtypes(
    flattened: list[tuple[Any, ...]], options: dict[str, Any], weights: int, per_layer: int
) -> None:
    module = on_gpu(torch.bfloat16, **options)
    flatten_weights(module)
    ((tensors, *rest),) = flattened
    assert len(tensors) == weights
    assert all(each is weight for each, weight in zip(tensors, module._flat_weights, strict=True))
    layers, both = options.get("num_layers", 1), options.get("bidirectional", False)
    assert rest == [per_layer, 3, 2, 8, options.get("proj_size", 0), layers, False, both]


def test_on_a_cpu_weights_stay_where_they_are(flattened: list[tuple[Any, ...]]) -> None:
    flatten_weights(torch.nn.GRU(3, 4, dtype=torch.bfloat16))
    assert not flattened


@pytest.mark.parametrize("error", [AttributeError, TypeError, RuntimeError])
def test_a_torch_that_refuses_leaves_the_weights_as_they_are(
    flattened: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refuse(*_: Any) -> None:
        raise error("changed")

    monkeypatch.setattr(torch, "_cudnn_rnn_flatten_weight", refuse)
    flatten_weights(on_gpu(torch.bfloat16))
    assert not flattened
