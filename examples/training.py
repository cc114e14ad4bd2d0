"""What both training scripts share: the optimizer, its schedule and the average of the weights."""

import copy
import math
from typing import Generic, TypeVar

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

Model = TypeVar("Model", bound=nn.Module)


def optimizer_of(
    model: nn.Module, rate: float, decay: float, updates: int
) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """AdamW that decays matrices alone, with a warm-up and a cosine descent of its rate."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": decay},
        {"params": vectors, "weight_decay": 0.0},
    ]

    def relative(update: int) -> float:
        descent = 0.5 * (1 + math.cos(math.pi * min(1.0, update / updates)))
        return min(1.0, (update + 1) / 200) * (0.01 + 0.99 * descent)

    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98))
    return optimizer, LambdaLR(optimizer, relative)


class RunningAverage(Generic[Model]):
    """A copy of a model whose weights are the running average of the model's."""

    def __init__(self, model: Model, keep: float) -> None:
        self.model = copy.deepcopy(model).eval()
        self._keep = keep
        self._updates = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move towards `model`, by more during the first updates."""
        self._updates += 1
        keep = min(self._keep, self._updates / (10 + self._updates))
        for mean, now in zip(self.model.parameters(), model.parameters(), strict=True):
            mean.lerp_(now, 1 - keep)
