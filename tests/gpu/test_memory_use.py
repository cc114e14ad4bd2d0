"""The memory of a process on a real GPU, as its metrics export it."""

import pytest
import torch

from sruserve.kernels.devices import memory_use


@pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton's interpreter has no GPU memory")
def test_what_is_in_use_is_part_of_what_is_reserved_within_the_limit() -> None:
    device = torch.device("cuda", 0)
    _, _, before = memory_use(device)
    held = torch.zeros(1 << 20, device=device)
    limit, reserved, used = memory_use(device)
    assert used - before == held.nbytes
    assert used <= reserved <= limit
    assert limit <= torch.cuda.get_device_properties(device).total_memory
