"""Embeddings give their formulas' rows, which do not depend on the other ids."""

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from sruserve.model.cells.stack import Builder, Shapes
from sruserve.model.embeddings import EmbeddingConfig

CPU = torch.device("cpu")
WIDTH = 12


def random_weights(shapes: Shapes, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@st.composite
def adaptive(draw: st.DrawFn) -> tuple[EmbeddingConfig, int]:
    vocab_size = draw(st.integers(2, 60))
    cutoffs = sorted(draw(st.sets(st.integers(1, vocab_size - 1), max_size=3)))
    divide = draw(st.integers(1, 4))
    size = divide ** len(cutoffs) * draw(st.integers(1, 3)) + draw(st.integers(0, 2))
    scale = draw(st.sampled_from([1.0, WIDTH**0.5]))
    config = EmbeddingConfig(cutoffs=tuple(cutoffs), size=size, divide=divide, scale=scale)
    return config, vocab_size


def by_formula(config: EmbeddingConfig, weights: Mapping[str, Tensor], vocab_size: int) -> Tensor:
    """Row by row in float64: scale * projection @ row of the id's cluster."""
    rows = []
    for word in range(vocab_size):
        cluster = sum(word >= cutoff for cutoff in config.cutoffs)
        first = (0, *config.cutoffs)[cluster]
        own = weights[f"embedding.{cluster}.weight"][word - first].double()
        rows.append(config.scale * (weights[f"embedding.{cluster}.proj"].double() @ own))
    return torch.stack(rows)


@settings(max_examples=40)
@given(adaptive(), st.data())
def test_an_adaptive_row_is_its_clusters_row_projected(
    drawn: tuple[EmbeddingConfig, int], data: st.DataObject
) -> None:
    config, vocab_size = drawn
    weights = random_weights(config.shapes(vocab_size, WIDTH, tied=False))
    embedding = config.make(weights, vocab_size, Builder(torch.float32, CPU), tied=False)
    ids = torch.tensor(data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=1)))
    expected = by_formula(config, weights, vocab_size)[ids].float()
    torch.testing.assert_close(embedding(ids), expected, atol=1e-5, rtol=1e-5)
    assert embedding.table is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=20)
@given(ids=st.lists(st.integers(0, 39), min_size=1, max_size=40))
def test_a_row_does_not_depend_on_the_others(dtype: torch.dtype, ids: list[int]) -> None:
    config = EmbeddingConfig(cutoffs=(10, 25), size=16, divide=2)
    weights = random_weights(config.shapes(40, WIDTH, tied=False))
    embedding = config.make(weights, 40, Builder(dtype, CPU), tied=False)
    alone = torch.cat([embedding(torch.tensor([word])) for word in ids])
    assert torch.equal(embedding(torch.tensor(ids)), alone)
    assert alone.dtype is dtype


def test_a_tied_adaptive_embedding_reads_the_heads_words_and_not_its_clusters() -> None:
    config = EmbeddingConfig(cutoffs=(4, 9), size=8, divide=2)
    own = random_weights(config.shapes(20, WIDTH, tied=False))
    shared = {k.replace("embedding", "output"): v for k, v in own.items() if "weight" in k}
    shared["output.0.weight"] = torch.cat((shared["output.0.weight"], torch.full((2, 8), 1e6)))
    tied = {k: v for k, v in own.items() if "proj" in k} | shared
    assert set(config.shapes(20, WIDTH, tied=True)) == {k for k in own if "proj" in k}
    ids, builder = torch.arange(20), Builder(torch.float32, CPU)
    expected = config.make(own, 20, builder, tied=False)(ids)
    assert torch.equal(config.make(tied, 20, builder, tied=True)(ids), expected)


@given(st.lists(st.integers(0, 6)))
def test_a_plain_row_is_the_tables_times_the_scale(ids: list[int]) -> None:
    config = EmbeddingConfig(scale=1.5)
    weights = random_weights(config.shapes(7, WIDTH, tied=False))
    embedding = config.make(weights, 7, Builder(torch.bfloat16, CPU), tied=False)
    rows = embedding(torch.tensor(ids, dtype=torch.int64))
    assert torch.equal(rows, (weights["embedding.weight"] * 1.5)[ids].bfloat16())
    assert embedding.table is not None
    assert embedding.table.shape == (7, WIDTH)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cutoffs": (5,)}, "cutoffs need size"),
        ({"cutoffs": (5, 5), "size": 64}, "cutoffs must rise"),
        ({"cutoffs": (5, 6), "size": 15}, "lower divide or raise size"),
        ({"scale": float("nan")}, "finite"),
    ],
)
def test_clusters_that_make_no_sense_are_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        EmbeddingConfig.model_validate(options)


def test_clusters_past_the_vocabulary_are_refused() -> None:
    config = EmbeddingConfig(cutoffs=(5,), size=4)
    config.check_vocabulary(6)
    for vocab_size in (5, None):
        with pytest.raises(ValueError, match=rf"below vocab_size \({vocab_size}\)"):
            config.check_vocabulary(vocab_size)
