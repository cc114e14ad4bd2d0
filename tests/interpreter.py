"""Fixtures of the tests that run Triton kernels, in the interpreter or on a GPU."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
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
def interpreter() -> Iterator[None]:
    """Triton's interpreter without its slowest parts, and with products as a GPU rounds them."""
    with pytest.MonkeyPatch.context() as patch:
        if INTERPRETED:
            compute_less(patch)
            remember_types(patch)
            round_rows_alike(patch)
        yield


def compute_less(patch: pytest.MonkeyPatch) -> None:
    """Leave out what the interpreter does again and again, number by number, or for nothing."""
    import triton.language
    from triton.language import core, semantic
    from triton.runtime import interpreter

    prepare, prepared = interpreter._patch_lang, set[str]()
    check = semantic.TritonSemantic.binary_op_type_checking_impl
    kept = {"int1", "int32", "int64", "uint64", "fp32", "fp64"}  # if both operands have the type

    def prepare_once(function: Callable[..., Any]) -> Any:
        """Replace the language once per module, not at every call in a kernel."""
        if function.__module__ not in prepared:
            prepared.add(function.__module__)
            prepare(function)
        return interpreter._LangPatchScope()  # with nothing to take back

    def sort_at_once(x: Any, descending: bool) -> Any:
        """The original is a network of comparisons, in Python."""
        ordered = np.sort(x.handle.data)
        handle = interpreter.TensorHandle(ordered[::-1] if descending else ordered, x.dtype)
        return core.tensor(handle, x.type)

    def check_others(self: Any, left: Any, right: Any, *rest: Any, **options: Any) -> Any:
        tensors = isinstance(left, core.tensor) and isinstance(right, core.tensor)
        if tensors and left.type is right.type and left.dtype.name in kept:
            return left, right
        return check(self, left, right, *rest, **options)

    patch.setattr(interpreter, "_patch_lang", prepare_once)
    patch.setattr(triton.language, "sort", sort_at_once)
    patch.setattr(semantic.TritonSemantic, "binary_op_type_checking_impl", check_others)
    # Without `debug`, it computes whether an integer overflows and tells nobody.
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))


def remember_types(patch: pytest.MonkeyPatch) -> None:
    """Make each type and each shape once, not for every number that a kernel computes."""
    from triton.language import core, semantic
    from triton.runtime import interpreter

    blocks: dict[tuple[Any, ...], Any] = {}
    numpy_types: dict[str, Any] = {}
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}
    numpy_type = interpreter._get_np_dtype
    broadcast = semantic.TritonSemantic.broadcast_impl_value

    def numpy_type_once(kind: Any) -> Any:
        if kind.name not in numpy_types:
            numpy_types[kind.name] = numpy_type(kind)
        return numpy_types[kind.name]

    def block_once(element: Any, shape: Any) -> Any:
        key = (element.name, *shape)
        if key not in blocks:
            blocks[key] = core.block_type(element, shape)
        return blocks[key]

    def begin_tensor(self: Any, handle: Any, kind: Any) -> None:
        key = tuple(kind.shape) if kind.is_block() else ()
        if key not in shapes:
            shapes[key] = core.tuple(map(core.constexpr, key)), core.constexpr(prod(key))
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        self.shape, self.numel = shapes[key]

    def broadcast_others(self: Any, left: Any, right: Any) -> Any:
        same = left.shape is right.shape
        return (left, right) if same else broadcast(self, left, right)

    patch.setattr(interpreter, "_get_np_dtype", numpy_type_once)
    patch.setattr(interpreter.interpreter_builder, "get_block_ty", block_once)
    patch.setattr(core.block_type, "with_element_ty", lambda kind, to: block_once(to, kind.shape))
    patch.setattr(core.tensor, "__init__", begin_tensor)
    patch.setattr(semantic.TritonSemantic, "broadcast_impl_value", broadcast_others)


def round_rows_alike(patch: pytest.MonkeyPatch) -> None:
    """Give a row's product the same bits anywhere in a tile.

    The interpreter multiplies with numpy's BLAS. For AVX2, its rounding depends on the row's place.
    """
    from triton.runtime import interpreter

    def dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
        factors = np.ascontiguousarray(a.data), np.ascontiguousarray(b.data)
        product = np.einsum("...ik,...kj->...ij", *factors, dtype=d.data.dtype)
        return type(a)(product + d.data, d.dtype.scalar)

    patch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)
