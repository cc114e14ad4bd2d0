"""Norms: each agrees with its formula, and a row has the same bits in every batch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sruserve.kernels.norm import Norm, NormKind


def formula(x: Tensor, kind: NormKind) -> Tensor:
    mean = x.mean(1, keepdim=True)
    if kind is NormKind.LAYER:
        return (x - mean) / (x.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
    if kind is NormKind.UNBIASED:
        return (x - mean) / (x.var(1, keepdim=True) + 1e-6).sqrt()
    if kind is NormKind.STD:
        return (x - mean) / (x.std(1, keepdim=True, correction=0) + 1e-6)
    return x / (x.square().mean(1, keepdim=True) + 1e-8).sqrt()


@given(
    kind=st.sampled_from(NormKind),
    rows=st.integers(1, 5),
    n=st.integers(2, 300),
    spread=st.sampled_from([1e-3, 1.0, 30.0]),
    biased=st.booleans(),
    seed=st.integers(0, 100),
)
def test_a_norm_is_its_formula(
    kind: NormKind, rows: int, n: int, spread: float, biased: bool, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, n, generator=g) * spread + torch.randn(rows, 1, generator=g) * spread
    weight, bias = torch.randn(2, n, generator=g)
    if kind is NormKind.RMS or not biased:
        bias = torch.zeros(n)
    expected = (formula(x.double(), kind) * weight + bias).float()
    result = Norm(weight, bias if biased and kind is not NormKind.RMS else None, kind)(x)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", NormKind)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [1, 7, 512, 6144])
def test_a_row_has_the_same_bits_in_any_company(kind: NormKind, dtype: torch.dtype, n: int) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(70, n, generator=g).to(dtype)
    norm = Norm(torch.randn(n, generator=g).to(dtype), None, kind)
    whole = norm(x)
    assert whole.dtype is dtype
    for rows in (1, 2, 3, 8, 33):
        assert torch.equal(norm(x[:rows]), whole[:rows])
        assert torch.equal(norm(x[rows : rows + 1]), whole[rows : rows + 1])


@pytest.mark.parametrize("kind", [NormKind.LAYER, NormKind.UNBIASED, NormKind.STD])
def test_a_row_of_equal_numbers_is_finite(kind: NormKind) -> None:
    x = torch.zeros(2, 8)
    assert torch.equal(Norm(torch.ones(8), torch.full((8,), 0.5), kind)(x), torch.full((2, 8), 0.5))


def test_one_number_has_no_unbiased_variance_and_stays_what_it_is() -> None:
    x = torch.randn(3, 1)
    assert torch.equal(Norm(torch.ones(1) * 2, torch.ones(1), NormKind.UNBIASED)(x), x)


@pytest.mark.parametrize("kind", NormKind)
def test_a_lone_row_of_very_many_numbers_has_the_bits_it_has_in_company(kind: NormKind) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    x = torch.randn(3, 40_000, generator=torch.Generator().manual_seed(0))
    norm = Norm(torch.ones(40_000), None, kind)
    result = norm(x[:1]), norm(x)[:1]
    torch.set_num_threads(before)
    assert torch.equal(*result)
