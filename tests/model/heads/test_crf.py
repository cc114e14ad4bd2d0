"""Viterbi's path through a linear chain is the best of all paths."""

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sruserve.model.cells.stack import Builder
from sruserve.model.heads.config import HeadConfig
from sruserve.model.heads.crf import LinearChain, crf_shapes
from tests.support import CPU, random_config

LABELS = 4


def chain(seed: int) -> tuple[LinearChain, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(shape, generator=generator) for name, shape in crf_shapes(LABELS).items()
    }
    return LinearChain(tensors, Builder(torch.float32, CPU)), tensors


def score(tensors: dict[str, Tensor], emissions: Tensor, path: tuple[int, ...]) -> float:
    """The score of a path, in float64, by its definition."""
    w = {name.removeprefix("crf."): tensor.double() for name, tensor in tensors.items()}
    total = w["start_transitions"][path[0]] + w["end_transitions"][path[-1]]
    total = total + sum(emissions[t, label].double() for t, label in enumerate(path))
    for before, after in pairwise(path):
        total = total + w["transitions"][before, after]
    return float(total)


@settings(max_examples=60)
@given(length=st.integers(1, 5), seed=st.integers(0, 50))
def test_the_path_is_the_best_of_all(length: int, seed: int) -> None:
    crf, tensors = chain(seed)
    emissions = torch.randn(length, LABELS, generator=torch.Generator().manual_seed(seed))
    path = tuple(crf.decode(emissions).tolist())
    every = product(range(LABELS), repeat=length)
    best = max(score(tensors, emissions, candidate) for candidate in every)
    assert score(tensors, emissions, path) == pytest.approx(best, abs=1e-5)


def test_a_crf_reads_whole_inputs_and_is_for_tags() -> None:
    head = HeadConfig(crf=True)
    config = random_config("tag", labels=("a", "b"), head=head)
    assert config.not_streamable_because == "its CRF reads all steps before it labels one"
    with pytest.raises(ValueError, match="crf is for task tag only"):
        random_config("classify", labels=("a", "b"), head=head)
    with pytest.raises(ValueError, match="may have 256 labels; this one has 300"):
        random_config("tag", labels=tuple(map(str, range(300))), head=head)
