"""Fixtures of the tests that run Triton kernels, in the interpreter or on a GPU."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

# Triton reads the variable once, as it is imported.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(autouse=True)
def quiet_numpy() -> Iterator[None]:
    """Silence numpy, in which the interpreter computes, where a GPU is silent."""
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


@pytest.fixture(autouse=True, scope="session")
def quick_interpreter() -> Iterator[None]:
    """Triton's interpreter without its slowest parts; its results do not change."""
    if not INTERPRETED:
        yield
        return
    from triton.language import standard
    from triton.runtime import interpreter

    prepare, prepared = interpreter._patch_lang, set[str]()
    reduce = interpreter.ReduceOps.apply_impl

    def prepare_once(function: Callable[..., Any]) -> Any:
        """Replace the language once per module, not at every call in a kernel."""
        if function.__module__ not in prepared:
            prepared.add(function.__module__)
            prepare(function)
        return interpreter._LangPatchScope()  # with nothing to take back

    def reduce_at_once(self: Any, tensors: Any) -> Any:
        """The original computes the xor of a sort number by number; use NumPy."""
        if self.combine_fn != standard._xor_combine:
            return reduce(self, tensors)
        result = np.bitwise_xor.reduce(tensors[0].handle.data, self.axis, keepdims=self.keep_dims)
        return self.to_tensor(result, tensors[0].dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", prepare_once)
        patch.setattr(interpreter.ReduceOps, "apply_impl", reduce_at_once)
        yield
