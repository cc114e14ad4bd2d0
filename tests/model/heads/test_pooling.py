"""Pooling gives torch's mean, maximum and attention of all inputs so far, for any split."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sruserve.kernels import RaggedBatch, single
from sruserve.model.cells.stack import Builder
from sruserve.model.heads.attention_pool import AttentionPool
from sruserve.model.heads.building import make_pool
from sruserve.model.heads.config import HeadConfig
from sruserve.model.heads.pooling import PoolLayer
from sruserve.model.runtime import Runtime
from sruserve.model.state import StateLayout
from tests.support import random_model, random_tensors

WIDTH = 5
CPU = torch.device("cpu")
POOLINGS = pytest.mark.parametrize("pooling", ["mean", "max", "attention"])
SCORE = {"pool.0.weight": torch.tensor([[0.9, -1.3, 0.4, 2.0, -0.7]])}  # of a step, by attention


def head_of(pooling: str) -> HeadConfig:
    """The head with this pooling; attention scores a step by one linear layer."""
    layers = [{"type": "linear", "size": 1, "bias": False}] if pooling == "attention" else []
    return HeadConfig.model_validate({"pooling": pooling, "attention": layers})


def pool_layer(
    pooling: str, dtype: torch.dtype = torch.float32
) -> tuple[PoolLayer | AttentionPool, StateLayout]:
    """The layer, with its state between that of others."""
    config = head_of(pooling)
    layout = StateLayout([("0.c", (3,)), *config.states("classify", WIDTH), ("end", (2,))])
    layer = make_pool(config, "classify", SCORE, WIDTH, layout, Builder(dtype, CPU))
    assert isinstance(layer, PoolLayer | AttentionPool)
    columns = {"mean": WIDTH, "max": 2 * WIDTH, "attention": 2 * WIDTH + 2}
    assert (layer.width, layer.columns) == (WIDTH, columns[pooling])
    return layer, layout


def so_far(pooling: str, x: Tensor, score: Tensor = SCORE["pool.0.weight"]) -> Tensor:
    """The pooled rows, by torch, in float64."""
    if pooling == "attention":
        scores = x.double() @ score[0].double()
        parts = [scores[: t + 1].softmax(0) @ x[: t + 1].double() for t in range(len(x))]
        return torch.stack(parts) if parts else x.double()
    pooled = [x[: t + 1].double().mean(0) for t in range(len(x))]
    if pooling == "max":
        pooled = [x[: t + 1].amax(0).double() for t in range(len(x))]
    return torch.stack(pooled) if pooled else x.double()


def run(
    layer: PoolLayer | AttentionPool, states: Tensor, parts: list[Tensor], fresh: bool = False
) -> list[Tensor]:
    """One call with a sequence for each state row; `fresh` starts from zeros, not from the row."""
    offsets = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)
    rows = torch.arange(len(parts))
    source = torch.full_like(rows, -1) if fresh else rows
    pooled = layer(torch.cat(parts), RaggedBatch(offsets, states, source, rows))
    return list(torch.split(pooled, [len(part) for part in parts]))


@POOLINGS
@settings(max_examples=30)
@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_pooling_is_torchs_own(pooling: str, lengths: list[int], seed: int) -> None:
    layer, layout = pool_layer(pooling)
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(n, WIDTH, generator=generator) - 1 for n in lengths]
    states = layout.allocate(len(parts)).fill_(7.0)
    for x, pooled in zip(parts, run(layer, states, parts, fresh=True), strict=True):
        torch.testing.assert_close(pooled.double(), so_far(pooling, x), atol=1e-5, rtol=1e-5)
    assert layout.unpack(states)["pool.steps"][:, 0].tolist() == lengths
    others = states[:, :3], states[:, -2:]
    assert all((other == 7.0).all() for other in others)


@POOLINGS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=30)
@given(cuts=st.lists(st.integers(0, 40), max_size=5))
def test_any_split_gives_the_bits_of_the_whole(
    pooling: str, dtype: torch.dtype, cuts: list[int]
) -> None:
    layer, layout = pool_layer(pooling, dtype)
    x = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype) - 1
    whole, states = layout.allocate(1), layout.allocate(1)
    (expected,) = run(layer, whole, [x])
    bounds = [0, *sorted(cuts), 40]
    parts = [x[a:b] for a, b in pairwise(bounds)]
    pooled = torch.cat([run(layer, states, [part])[0] for part in parts])
    assert pooled.dtype is dtype
    assert torch.equal(pooled, expected)
    assert torch.equal(states, whole)


@pytest.mark.parametrize("offset", [-200.0, 0.0, 200.0])
@pytest.mark.parametrize("order", ["rising", "falling"])
def test_attention_by_scores_of_any_size_is_torchs_own(offset: float, order: str) -> None:
    layer, layout = pool_layer("attention")
    x = torch.randn(50, WIDTH, generator=torch.Generator().manual_seed(2))
    x[:, 3] = torch.linspace(-60, 60, 50) * (1 if order == "rising" else -1) + offset
    (pooled,) = run(layer, layout.allocate(1), [x])
    torch.testing.assert_close(pooled.double(), so_far("attention", x), rtol=1e-5, atol=1e-5)


def test_attention_over_a_score_that_is_not_finite_has_no_answer() -> None:
    layer, layout = pool_layer("attention")
    x = torch.randn(6, WIDTH)
    x[2, 0] = torch.inf
    (pooled,) = run(layer, layout.allocate(1), [x])
    assert torch.isfinite(pooled[:2]).all()
    assert not torch.isfinite(pooled[2:]).all(1).any()


@POOLINGS
def test_a_chunk_of_time_writes_to_its_output(pooling: str) -> None:
    layer, layout = pool_layer(pooling)
    x = torch.randn(6, WIDTH)
    batch = RaggedBatch(
        torch.tensor([0, 6]), layout.allocate(1), torch.tensor([-1]), torch.tensor([0])
    )
    out = torch.full_like(x, torch.nan)
    h = layer.finish(layer.scan(layer.project(x, batch), x, batch, out=out))
    assert h.data_ptr() == out.data_ptr()
    assert torch.equal(out, layer(x, batch))


def test_a_mean_in_bfloat16_is_rounded_once() -> None:
    layer, layout = pool_layer("mean")
    x = torch.randn(200, WIDTH).bfloat16()
    (pooled,) = run(layer, layout.allocate(1), [x])
    assert torch.equal(pooled[-1], x.double().mean(0).bfloat16())


@pytest.mark.parametrize(
    ("task", "pooling"), [("pair", "mean"), ("classify", "last"), ("generate", "last")]
)
def test_only_pooled_streams_remember_for_it(task: str, pooling: str) -> None:
    config = HeadConfig.model_validate({"pooling": pooling})
    assert config.states(task, WIDTH) == []
    builder = Builder(torch.float32, CPU)
    assert make_pool(config, task, {}, WIDTH, StateLayout([]), builder) is None


@POOLINGS
@pytest.mark.parametrize("options", [{}, {"concat_layers": True}, {"bidirectional": True}], ids=str)
def test_a_network_pools_what_its_stack_gives(
    pooling: str, options: dict[str, Any], tmp_path: Path
) -> None:
    def last_layers(folder: str, head: HeadConfig) -> tuple[Runtime, Tensor]:
        model = random_model(tmp_path / folder, "classify", vocab_size=30, head=head, **options)
        states = model.network.layout.allocate(1)
        return model.network, model.network.hidden(ids, single(states, len(ids)))

    ids = torch.arange(25)
    network, pooled = last_layers("pooled", head_of(pooling))
    _, plain = last_layers("plain", HeadConfig())
    score = random_tensors(network.config).get("pool.0.weight", torch.empty(0))
    expected = so_far(pooling, plain, score).float()
    torch.testing.assert_close(pooled, expected, atol=1e-5, rtol=1e-5)
    names = [entry.name for entry in network.layout.entries]
    of_scores = ["pool.weight", "pool.largest", "pool.previous"]
    own = of_scores if pooling == "attention" else []
    assert names == ["0.c", "1.c", "pool", *own, "pool.steps"]
    assert network.logits(pooled).shape == (25, 3)
