"""What needs an NVIDIA GPU; collected elsewhere only when Triton's interpreter is asked for."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if torch.cuda.is_available() or INTERPRETED else ["test_*.py"]


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")


@pytest.fixture(autouse=True, scope="session")
def quiet_numpy() -> Iterator[None]:
    """The interpreter computes in numpy, which warns of what a GPU does silently."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(autouse=True, scope="session")
def poisoned_outputs() -> Iterator[None]:
    """Memory starts as NaN, so an output that nobody writes cannot pass."""
    empty = torch.empty

    def poisoned(*size: Any, **options: Any) -> Tensor:
        made = empty(*size, **options)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", poisoned)
        yield
