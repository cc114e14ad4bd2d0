"""Matrix products whose rows depend neither on the other rows nor on the threads."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from sruserve.kernels.linear import LinearOp, PackedLinear, PanelLinear
from tests.kernels.instruction_sets import EACH_SET

ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 128, 255, 511, 1024, 2048)


Make = Callable[[Tensor, Tensor | None], LinearOp]

SHAPES = [(6, 5), (24, 72), (128, 384), (512, 1536), (513, 65), (1500, 300), (4096, 96)]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Restore torch's number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def same(left: Tensor, right: Tensor) -> bool:
    return torch.equal(left, right)


def panels(weight: Tensor, bias: Tensor | None) -> LinearOp:
    return PanelLinear(weight, bias)


def packed(weight: Tensor, bias: Tensor | None) -> LinearOp:
    return PackedLinear(weight, bias, torch.float32)


def rounded(weight: Tensor, bias: Tensor | None) -> LinearOp:
    return PackedLinear(weight, bias, torch.bfloat16)


EACH_KIND = pytest.mark.parametrize("make", [panels, packed, rounded])


def inputs_of(make: object, rows: int, inputs: int) -> Tensor:
    return torch.randn(rows, inputs).to(torch.bfloat16 if make is rounded else torch.float32)


@EACH_KIND
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_the_same_bits_in_any_company(
    inputs: int, outputs: int, make: Make, threads: int
) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    product = make(torch.randn(outputs, inputs), torch.randn(outputs))
    x = inputs_of(make, ROWS[-1], inputs)
    whole = product(x)
    for rows in ROWS:
        assert same(product(x[:rows]), whole[:rows]), f"{rows} rows"
    assert same(product(x[100:101]), whole[100:101])


@EACH_KIND
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_product_has_the_same_bits_with_one_thread_and_with_two(
    inputs: int, outputs: int, make: Make
) -> None:
    torch.manual_seed(1)
    product = make(torch.randn(outputs, inputs), torch.randn(outputs))
    x = inputs_of(make, ROWS[-1], inputs)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append([product(x[:rows]) for rows in ROWS])
    for rows, one, two in zip(ROWS, *results, strict=True):
        assert same(one, two), f"{rows} rows"


@EACH_SET
@pytest.mark.parametrize("make", [panels, packed])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_product_is_a_linear_map_with_its_bias(inputs: int, outputs: int, make: Make) -> None:
    torch.manual_seed(1)
    weight, bias, x = torch.randn(outputs, inputs), torch.randn(outputs), torch.randn(97, inputs)
    x /= inputs**0.5
    expected = (x.double() @ weight.double().T + bias.double()).float()
    torch.testing.assert_close(make(weight, bias)(x), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(make(weight, None)(x), expected - bias, rtol=1e-5, atol=1e-5)


def test_a_product_refuses_rows_that_do_not_fit() -> None:
    product = PanelLinear(torch.randn(30, 20), None)
    for x in (torch.randn(7, 21), torch.randn(7, 20).double()):
        with pytest.raises(ValueError, match=r"product: x must be \(rows, 20\), float32"):
            product(x)
    x = torch.randn(20, 7).T
    assert same(product(x), product(x.contiguous()))


def test_without_the_packed_product_rows_agree_to_1e_5(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = torch.randn(96, 64) / 8, torch.randn(50, 64)
    packed = PackedLinear(weight, None, torch.float32)(x)
    monkeypatch.setattr("sruserve.kernels.linear.has_packed_linear", lambda: False)
    plain = PackedLinear(weight, None, torch.float32)
    torch.testing.assert_close(plain(x), packed, rtol=0, atol=1e-5)
    torch.testing.assert_close(plain(x[:1]), packed[:1], rtol=0, atol=1e-5)
