"""Products with a torch that lacks one of the private members that they use, or has changed it."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sruserve.kernels import torch_members
from sruserve.kernels.linear import PackedLinear
from tests import preloaded

ROOT = Path(__file__).parents[2]
OPS = ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")
MEMBERS = [f"torch.ops.mkldnn.{name}" for name in OPS] + ["torch.cpu._is_avx512_bf16_supported"]


class OtherOps:
    """`torch.ops.mkldnn` without one member, or with another one in its place."""

    def __init__(self, name: str, other: object) -> None:
        for each in OPS:
            setattr(self, each, getattr(torch.ops.mkldnn, each))
        if other is None:
            delattr(self, name)
        else:
            setattr(self, name, other)


def replace(monkeypatch: pytest.MonkeyPatch, member: str, other: object) -> None:
    """Put `other` in the place of a member; None removes it."""
    owner, _, name = member.rpartition(".")
    if owner == "torch.ops.mkldnn":
        monkeypatch.setattr(torch.ops, "mkldnn", OtherOps(name, other))
    elif other is None:
        monkeypatch.delattr(torch.cpu, name)
    else:
        monkeypatch.setattr(torch.cpu, name, other)


def takes_other_arguments(*, other: object) -> None:
    """A member as another release might have it."""


def returns_another_layout(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.T


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Try the members anew, before and after each test."""
    for cached in (torch_members.missing_members, torch_members.rows_agree):
        cached.cache_clear()
    yield
    for cached in (torch_members.missing_members, torch_members.rows_agree):
        cached.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("other", [None, takes_other_arguments], ids=["removed", "changed"])
@pytest.mark.parametrize("member", MEMBERS)
def test_without_a_member_products_agree_and_the_operator_reads_which_one(
    monkeypatch: pytest.MonkeyPatch,
    member: str,
    other: Callable[..., None] | None,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(1)
    weight, bias, x = torch.randn(96, 64) / 8, torch.randn(96), torch.randn(50, 64).to(dtype)
    expected = PackedLinear(weight, bias, dtype)
    results = [expected(x), expected(x[:1])]
    assert torch_members.torch_warning() == ""
    torch_members.missing_members.cache_clear()
    replace(monkeypatch, member, other)
    product = PackedLinear(weight, bias, dtype)
    # the same sums in another order, each rounded once
    tolerance = 1e-5 if dtype is torch.float32 else torch.finfo(dtype).eps
    for rows, result in zip((x, x[:1]), results, strict=True):
        torch.testing.assert_close(product(rows), result, rtol=tolerance, atol=1e-5)
    warning = torch_members.torch_warning()
    assert re.match(rf"torch {re.escape(torch.__version__)} is incomplete: without ", warning)
    assert member.rpartition(".")[2] in warning
    assert "\n" not in warning


def test_a_packed_product_with_other_results_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "torch.ops.mkldnn._linear_pointwise", returns_another_layout)
    assert not torch_members.has_packed_linear()
    assert "_linear_pointwise" in torch_members.torch_warning()


def test_without_the_bits_of_packed_products_one_row_still_agrees_to_1e_5(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace(monkeypatch, "torch.ops.mkldnn._reorder_linear_weight", None)
    product = PackedLinear(torch.randn(96, 64) / 8, None, torch.float32)
    x = torch.randn(50, 64)
    torch.testing.assert_close(product(x)[7:8], product(x[7:8]), rtol=1e-5, atol=1e-5)


def test_a_build_of_torch_without_onednn_lacks_nothing_that_it_could_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    replace(monkeypatch, "torch.ops.mkldnn._linear_pointwise", None)
    assert not torch_members.has_packed_linear()
    assert torch_members.torch_warning() == ""


def test_where_sums_depend_on_the_batch_bfloat16_is_multiplied_in_float32(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    of_torch = torch.ops.mkldnn._linear_pointwise

    def other_in_large_batches(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        product: torch.Tensor = of_torch(x, *rest)
        if x.dtype is torch.bfloat16 and len(x) > 100:
            product[0, 0] += product[0, 0].abs().max() + 1
        return product

    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    replace(monkeypatch, "torch.ops.mkldnn._linear_pointwise", other_in_large_batches)
    assert not torch_members.multiplies_bfloat16()
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in caplog.text
    product = PackedLinear(torch.randn(96, 64), None, torch.bfloat16)
    x = torch.randn(256, 64).bfloat16()
    assert torch.equal(product(x)[:2], product(x[:2]))


def test_a_processor_s_newest_instructions_change_no_row_in_any_company() -> None:
    """With AMX, oneDNN's own sums would depend on the batch, unless the package came too late."""
    program = """
import torch
from sruserve.kernels.linear import PackedLinear
from tests import preloaded
torch.manual_seed(1)
x = torch.randn(300, 1024).bfloat16()
product = PackedLinear(torch.randn(64, 1024), None, torch.bfloat16)
print(all(torch.equal(product(x[:rows]), product(x)[:rows]) for rows in (1, 33, 48, 100)))
"""
    done = preloaded.run("-c", program, environment=os.environ | {"ONEDNN_MAX_CPU_ISA": "ALL"})
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize(
    ("version", "is_newer"),
    [("2.11.0", False), ("2.13.1+cpu", False), ("2.14.0a0+git1", True), ("3.0", True)],
)
def test_a_newer_torch_is_known_by_its_version(
    monkeypatch: pytest.MonkeyPatch, version: str, is_newer: bool
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert torch_members.is_untested() == is_newer
    replace(monkeypatch, "torch.cpu._is_avx512_bf16_supported", None)
    tested = "newer than sruserve was tested with (2.13)"
    assert (tested in torch_members.torch_warning()) == is_newer


def test_the_newest_tested_torch_is_the_pinned_one() -> None:
    pin = re.search(r"^torch==(\d+)\.(\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pin is not None
    assert (int(pin[1]), int(pin[2])) == torch_members.TESTED
