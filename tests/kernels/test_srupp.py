"""A step of SRU++ on a GPU: a few launches, for none of which the host waits."""

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from sruserve.kernels import Cell, CellLayer, dispatch, make_linear
from sruserve.kernels.attention import Attention
from sruserve.kernels.norm import Norm
from sruserve.kernels.srupp import SRUppLayer
from sruserve.kernels.triton import attention, linear, step
from tests.no_wait import NoWait

INPUTS, INNER, WIDTH, WINDOW, STREAMS = 6, 8, 6, 5, 3
RING = WINDOW * 4 * INNER


class Launches:
    """Takes the place of kernels, and computes nothing."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        for module, name in (
            (linear, "linear_kernel"),
            (attention, "attention_kernel"),
            (attention, "ring_kernel"),
            (step, "step_kernel"),
        ):
            patch.setattr(module, name, _Kernel(name, self.names))


class _Kernel:
    def __init__(self, name: str, names: list[str]) -> None:
        self._name, self._names = name, names

    def __getitem__(self, grid: object) -> Any:
        return lambda *_, **__: self._names.append(self._name)


def layer() -> SRUppLayer:
    def product(inputs: int, outputs: int) -> Any:
        return make_linear(torch.randn(outputs, inputs), None, torch.float32)

    return SRUppLayer(
        narrow=product(INPUTS, INNER),
        cell=CellLayer(
            linear=product(INNER, 3 * WIDTH),
            cell=Cell(),
            column=0,
            weight_c=torch.randn(2, WIDTH),
            bias=torch.randn(2, WIDTH),
            highway_is_input=True,
        ),
        keys_values=product(INNER, 2 * INNER),
        attention=Attention(heads=2, alpha=1.0, window=WINDOW, column=WIDTH),
        norm=Norm(torch.ones(INPUTS), torch.zeros(INPUTS)),
    )


def test_a_step_never_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    states: Tensor = torch.zeros(STREAMS, WIDTH + RING + 2)
    rows, index = torch.arange(STREAMS), torch.tensor([4, 0, 4])
    with dispatch.interpreting(True):  # as on a GPU
        launches, under_test = Launches(monkeypatch), layer()
        with NoWait():
            h = under_test.step(torch.randn(9, INPUTS), states, rows, rows, index)
    assert h.shape == (STREAMS, WIDTH)
    products = ["linear_kernel"] * 4  # two of them for keys and values without the norm
    assert launches.names == [*products, "attention_kernel", "ring_kernel", "step_kernel"]
