"""Instruction sets, threads and memory of the kernels' tests."""

from collections.abc import Iterator

import pytest
import torch

import sruserve.kernels.cpu.library as cpu
from tests.kernels.instruction_sets import HERE, use


@pytest.fixture(scope="module", params=HERE)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    before = cpu.instruction_set()
    assert use(request.param)
    yield
    assert use(before)


@pytest.fixture(scope="module")
def poisoned_memory() -> Iterator[None]:
    """Memory starts as NaN, so a number that nobody writes cannot pass."""
    empty = torch.empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            torch, "empty", lambda *size, **options: empty(*size, **options).fill_(torch.nan)
        )
        yield


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
