"""Train a network for a few steps, on whatever."""

import torch
from torch import Tensor, nn

from tests.tracing.networks.features import Series
from tests.tracing.networks.network import FEATURES, WORDS


def trained(module: nn.Module, seed: int = 0) -> nn.Module:
    """Return a module after a few steps that draw its outputs to random numbers."""
    torch.manual_seed(seed)
    reads_ids = any(isinstance(each, nn.Embedding) for each in module.modules())
    one_hot = any(getattr(each, "input_size", 0) == WORDS for each in module.modules())
    inner = getattr(module, "_orig_mod", module)  # compiling would take long
    optimizer = torch.optim.Adam(inner.parameters(), lr=0.05)
    inner.train()
    for _ in range(5):
        if reads_ids or one_hot:
            x = torch.randint(WORDS, (6, 9))
        else:
            x = torch.randn(6, 9, FEATURES) * 2 + 1
            if isinstance(module, Series):
                x = x[..., 0]
        with torch.compiler.set_stance("force_eager"):
            scores = scores_of(inner(x))
        loss = (scores - torch.randn_like(scores)).square().mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return module


def scores_of(result: object) -> Tensor:
    """Return the scores among what a module returns."""
    if isinstance(result, dict):
        result = result["logits"]
    if isinstance(result, tuple):
        result = result[0]
    assert isinstance(result, Tensor)
    return result
