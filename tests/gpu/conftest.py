"""What needs an NVIDIA GPU; collected elsewhere only when Triton's interpreter is asked for."""

import pytest
import torch

from tests.interpreter import INTERPRETED, poisoned_outputs, quick_interpreter, quiet_numpy

__all__ = ["poisoned_outputs", "quick_interpreter", "quiet_numpy"]

collect_ignore_glob = [] if torch.cuda.is_available() or INTERPRETED else ["test_*.py"]


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")
