"""Matrix products whose rows depend neither on the other rows nor on the threads."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from sruserve.kernels.linear import PackedLinear

ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 128, 255, 511, 1024, 2048)


SHAPES = [(6, 5), (24, 72), (128, 384), (512, 1536), (513, 65), (1500, 300), (4096, 96)]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Restore torch's number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def same(left: Tensor, right: Tensor) -> bool:
    return torch.equal(left, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_the_same_bits_in_any_company(
    inputs: int, outputs: int, dtype: torch.dtype, threads: int
) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    product = PackedLinear(torch.randn(outputs, inputs), torch.randn(outputs), dtype)
    x = torch.randn(ROWS[-1], inputs).to(dtype)
    whole = product(x)
    for rows in ROWS:
        assert same(product(x[:rows]), whole[:rows]), f"{rows} rows"
    assert same(product(x[100:101]), whole[100:101])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_product_has_the_same_bits_with_one_thread_and_with_two(
    inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    product = PackedLinear(torch.randn(outputs, inputs), torch.randn(outputs), dtype)
    x = torch.randn(ROWS[-1], inputs).to(dtype)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append([product(x[:rows]) for rows in ROWS])
    for rows, one, two in zip(ROWS, *results, strict=True):
        assert same(one, two), f"{rows} rows"


def test_a_product_is_a_linear_map_with_its_bias() -> None:
    weight, bias, x = torch.randn(30, 20), torch.randn(30), torch.randn(7, 20)
    expected = (x.double() @ weight.double().T + bias.double()).float()
    torch.testing.assert_close(PackedLinear(weight, bias, torch.float32)(x), expected)


def test_without_the_packed_product_rows_agree_to_1e_5(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = torch.randn(96, 64) / 8, torch.randn(50, 64)
    packed = PackedLinear(weight, None, torch.float32)(x)
    monkeypatch.setattr("sruserve.kernels.linear.has_packed_linear", lambda: False)
    plain = PackedLinear(weight, None, torch.float32)
    torch.testing.assert_close(plain(x), packed, rtol=0, atol=1e-5)
    torch.testing.assert_close(plain(x[:1]), packed[:1], rtol=0, atol=1e-5)
