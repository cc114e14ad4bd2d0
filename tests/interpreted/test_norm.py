"""The norms in Triton are those of torch, row by row, and are chosen where torch's differ."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sruserve.kernels import Norm, NormKind, candidates
from sruserve.kernels.candidates import Candidate
from sruserve.kernels.norm_choice import choose_norm
from sruserve.kernels.triton.norm import triton_norm

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _none_chosen() -> Iterator[None]:
    yield
    candidates.choose(set())


@pytest.mark.parametrize("kind", NormKind)
@pytest.mark.parametrize("biased", [False, True], ids=["", "biased"])
@pytest.mark.parametrize("width", [1, 37, 64])
def test_a_norm_in_triton_is_that_of_torch(kind: NormKind, biased: bool, width: int) -> None:
    g = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(2, width, generator=g)
    has_bias = biased and kind is not NormKind.RMS
    norm = Norm(weight, bias if has_bias else None, kind)
    x = torch.randn(5, width, generator=g) * 3
    expected = norm(x)
    candidates.choose({Candidate.TRITON_NORM})
    torch.testing.assert_close(norm(x), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(norm(x[2:3]), norm(x)[2:3])


def test_it_is_used_only_where_it_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    norm, x = Norm(torch.ones(8), None), torch.randn(3, 8)
    expected = norm(x)

    def refuse(*_: Any, **__: Any) -> Tensor:
        raise AssertionError("torch's norm")

    monkeypatch.setattr(F, "layer_norm", refuse)
    with pytest.raises(AssertionError, match="torch's norm"):
        norm(x)
    candidates.choose({Candidate.TRITON_NORM})
    torch.testing.assert_close(norm(x), expected)


@pytest.mark.parametrize("depends", [False, True])
def test_the_check_chooses_it_where_the_number_of_rows_changes_torchs(
    depends: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = F.layer_norm

    def by_rows(x: Tensor, *rest: Any) -> Tensor:
        return original(x, *rest) + (1e-6 * len(x) if depends else 0)

    monkeypatch.setattr(F, "layer_norm", by_rows)
    with caplog.at_level(logging.WARNING):
        choose_norm(CPU, torch.float32)
    assert (Candidate.TRITON_NORM in candidates.chosen) == depends
    assert ("using those in Triton" in caplog.text) == depends


def test_tensors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"weight and bias must have shape \(8,\)"):
        triton_norm(torch.zeros(2, 8), torch.zeros(7), None, 0, 1e-5)
