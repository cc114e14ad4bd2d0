"""The check of gated layers and attention before they are served sees what is wrong."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sruserve.kernels import self_check_layers as checks
from sruserve.kernels.attention import attend
from sruserve.kernels.fused_gated import FusedGatedLayer
from sruserve.kernels.self_check import KernelMismatch

CPU = torch.device("cpu")


def test_right_layers_pass() -> None:
    checks.check_other_layers(CPU, torch.float32)


def changed(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(*args: Any, **options: Any) -> Tensor:
        return function(*args, **options) * 1.01

    return run


def test_attention_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "attend", changed(attend))
    with pytest.raises(KernelMismatch, match="outputs of attention in float32 differ"):
        checks.check_other_layers(CPU, torch.float32)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scan", "outputs of LSTM in float32 differ"),
        ("step", "steps of LSTM in float32 differ"),
    ],
)
def test_a_layer_that_is_wrong_is_named(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Attention comes first, and takes nearly all of the time.
    monkeypatch.setattr(checks, "_attention", lambda *_: ({}, {}))
    monkeypatch.setattr(FusedGatedLayer, name, changed(getattr(FusedGatedLayer, name)))
    with pytest.raises(KernelMismatch, match=message):
        checks.check_other_layers(CPU, torch.float32)


def test_layers_that_do_not_run_are_reported_and_a_full_device_is_not_their_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(error: Exception) -> Callable[..., Tensor]:
        def run(*_: Any, **__: Any) -> Tensor:
            raise error

        return run

    monkeypatch.setattr(checks, "attend", fail(RuntimeError("no such instruction")))
    with pytest.raises(KernelMismatch, match="do not run in float32: no such instruction"):
        checks.check_other_layers(CPU, torch.float32)
    monkeypatch.setattr(checks, "attend", fail(torch.OutOfMemoryError("full")))
    with pytest.raises(torch.OutOfMemoryError):
        checks.check_other_layers(CPU, torch.float32)
