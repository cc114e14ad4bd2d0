"""The check of gated layers and attention before they are served sees what is wrong."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sruserve.kernels import self_check_layers as checks
from sruserve.kernels.fused_gated import FusedGatedLayer
from sruserve.kernels.self_check import KernelMismatch

CPU = torch.device("cpu")


def test_right_layers_pass() -> None:
    checks.check_other_layers(CPU, torch.float32)


def changed(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(*given: Any, **options: Any) -> Tensor:
        return function(*given, **options) * 1.01

    return run


@pytest.mark.parametrize(
    ("place", "name", "told"),
    [
        (checks, "attend", "outputs of attention in float32 differ"),
        (FusedGatedLayer, "scan", "outputs of LSTM in float32 differ"),
        (FusedGatedLayer, "step", "steps of LSTM in float32 differ"),
    ],
)
def test_a_layer_that_is_wrong_is_named(
    place: Any, name: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, changed(getattr(place, name)))
    with pytest.raises(KernelMismatch, match=told):
        checks.check_other_layers(CPU, torch.float32)


def test_layers_that_do_not_run_are_told_and_a_full_device_is_not_their_fault(
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
