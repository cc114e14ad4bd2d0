"""The Triton kernels on the CPU: what runs under `TRITON_INTERPRET=1`, in its own process."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

# Triton reads the variable once, as it is imported.
collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(autouse=True)
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
