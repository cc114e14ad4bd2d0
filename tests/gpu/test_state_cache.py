"""100,000 streams on a GPU, most of them in pinned host memory."""

from pathlib import Path

import pytest
import torch

from tests.server.engine.thousands import CLASSIFIER, continue_all
from tests.support import random_model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_is_continued_as_if_never_stopped_and_no_memory_is_lost(
    device: torch.device, dtype: str, tmp_path: Path
) -> None:
    if device.type == "cpu":
        pytest.skip("the interpreter would take hours")
    model = random_model(tmp_path / "c", dtype=dtype, device=device, **CLASSIFIER)
    continue_all(model, 100_000, lambda: torch.cuda.memory_reserved(device))
