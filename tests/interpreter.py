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


@pytest.fixture(autouse=True, scope="session")
def prepared_language() -> Iterator[None]:
    """The interpreter replaces Triton's whole language at every call of a function in a kernel,
    which is half of its time; here it does so once for each module that has kernels."""
    if not INTERPRETED:
        yield
        return
    from triton.runtime import interpreter

    prepare, prepared = interpreter._patch_lang, set[str]()

    def prepare_once(function: Callable[..., Any]) -> Any:
        if function.__module__ not in prepared:
            prepared.add(function.__module__)
            prepare(function)
        return interpreter._LangPatchScope()  # with nothing to take back

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", prepare_once)
        yield
