"""Run without gradients, at no cost where that is the mode already."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def without_gradients(work: Callable[P, T]) -> Callable[P, T]:
    """As `torch.inference_mode()`, which takes 3 µs also where the caller is in that mode."""
    in_mode = torch.inference_mode()(work)

    @wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return (work if torch.is_inference_mode_enabled() else in_mode)(*args, **kwargs)

    return run
