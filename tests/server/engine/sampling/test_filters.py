"""The filters keep what a sort of the whole vocabulary keeps, however few tokens are sorted."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sruserve.kernels.devices import CPU
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.sampling import filters as module
from sruserve.server.engine.sampling.filters import Filters

SAMPLINGS = st.builds(
    Sampling,
    top_k=st.sampled_from([0, 1, 3, 8, 9, 40, 1000]),
    top_p=st.sampled_from([1e-9, 0.3, 0.8, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.9]),
)


def probabilities(rows: int, seed: int, levels: int) -> Tensor:
    """Rows of 70 probabilities, with few different values if there are few levels."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, 70, generator=generator) * levels).round().softmax(1)


@given(
    sampling=st.lists(SAMPLINGS, min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
    levels=st.sampled_from([1, 3, 1000]),
    candidates=st.sampled_from([1, 2, 8, 34]),
)
def test_few_candidates_keep_what_all_tokens_keep(
    sampling: list[Sampling], seed: int, levels: int, candidates: int
) -> None:
    given = probabilities(len(sampling), seed, levels)
    rows = [i for i, s in enumerate(sampling) if s != Sampling()]
    if not rows:
        return
    before = given.clone()
    expected = Filters(sampling, rows, CPU, candidates=70)(given)
    assert torch.equal(Filters(sampling, rows, CPU, candidates)(given), expected)
    assert torch.equal(given, before)
    for row, one in enumerate(sampling):
        assert torch.equal(expected[row], by_definition(given[row], one))


def by_definition(row: Tensor, sampling: Sampling) -> Tensor:
    """One row, token by token, in Python's floats."""
    values = row.tolist()
    ids = sorted(range(len(values)), key=lambda i: (-values[i], i))
    if sampling.top_k:
        ids = ids[: sampling.top_k]
    kept, mass = list[int](), 0.0
    # Sums are in the order of ids if nothing is excluded yet, as in the filters.
    total = sum(values) if sampling.top_k in (0, 1000) else sum(values[i] for i in ids)
    for i in ids:
        if not kept or sampling.top_p == 1 or mass < sampling.top_p * total:
            kept.append(i)
        mass += values[i]
    least = torch.tensor(sampling.min_p) * row[ids[0]]
    filtered = torch.zeros_like(row)
    for i in kept:
        if row[i] >= least:
            filtered[i] = row[i]
    return filtered


def test_only_rows_that_keep_many_tokens_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, sort_all = list[int](), module._among_all

    def spy(given: Tensor, *rest: Tensor) -> Tensor:
        sizes.append(len(given))
        return sort_all(given, *rest)

    monkeypatch.setattr(module, "_among_all", spy)
    sampling = [Sampling(top_k=5), Sampling(), Sampling(top_p=0.999), Sampling(min_p=0.99)]
    Filters(sampling, [0, 2, 3], CPU, candidates=8)(probabilities(4, 0, 1))
    assert sizes == [1]
    Filters(sampling[:2], [0], CPU, candidates=8)(probabilities(2, 0, 1000))
    assert sizes == [1]
