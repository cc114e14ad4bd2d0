"""Equality of results: bit for bit on a GPU, close under the interpreter."""

import torch
from torch import Tensor


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    """Equal bits. The interpreter multiplies with numpy, whose rows depend on their number."""
    if ours.is_cuda:
        assert ours.dtype is theirs.dtype
        assert torch.equal(ours, theirs)
    else:
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
