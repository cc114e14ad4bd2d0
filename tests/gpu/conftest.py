"""Tests that need an NVIDIA GPU or, with TRITON_INTERPRET=1, Triton's interpreter."""

import pytest
import torch

from tests.interpreter import INTERPRETED, interpreter, poisoned_outputs, quiet_numpy

__all__ = ["interpreter", "poisoned_outputs", "quiet_numpy"]

collect_ignore_glob = [] if torch.cuda.is_available() or INTERPRETED else ["test_*.py"]


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")
