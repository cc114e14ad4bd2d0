"""Pooling a stream gives torch's mean and maximum of all inputs so far, for any split."""

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
from sruserve.model.heads.building import make_pool
from sruserve.model.heads.config import HeadConfig
from sruserve.model.heads.pooling import PoolLayer
from sruserve.model.network import Network
from sruserve.model.state import StateLayout
from tests.support import random_model

WIDTH = 5
BUILDER = Builder(torch.float32, torch.device("cpu"))
POOLINGS = pytest.mark.parametrize("pooling", ["mean", "max"])


def pool_layer(pooling: str) -> tuple[PoolLayer, StateLayout]:
    """The layer, with its state between that of others."""
    config = HeadConfig.model_validate({"pooling": pooling})
    layout = StateLayout([("0.c", (3,)), *config.states("classify", WIDTH), ("end", (2,))])
    layer = make_pool(config, "classify", {}, WIDTH, layout, BUILDER)
    assert isinstance(layer, PoolLayer)
    assert (layer.width, layer.columns) == (WIDTH, WIDTH if pooling == "mean" else 2 * WIDTH)
    return layer, layout


def so_far(pooling: str, x: Tensor) -> Tensor:
    """The pooled rows, by torch, in float64."""
    pooled = [x[: t + 1].double().mean(0) for t in range(len(x))]
    if pooling == "max":
        pooled = [x[: t + 1].amax(0).double() for t in range(len(x))]
    return torch.stack(pooled) if pooled else x.double()


def run(layer: PoolLayer, states: Tensor, parts: list[Tensor], fresh: bool = False) -> list[Tensor]:
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
    layer, layout = pool_layer(pooling)
    x = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype) - 1
    whole, states = layout.allocate(1), layout.allocate(1)
    (expected,) = run(layer, whole, [x])
    bounds = [0, *sorted(cuts), 40]
    parts = [x[a:b] for a, b in pairwise(bounds)]
    pooled = torch.cat([run(layer, states, [part])[0] for part in parts])
    assert pooled.dtype is dtype
    assert torch.equal(pooled, expected)
    assert torch.equal(states, whole)


@POOLINGS
def test_a_chunk_of_time_writes_where_it_is_told(pooling: str) -> None:
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
    assert make_pool(config, task, {}, WIDTH, StateLayout([]), BUILDER) is None


@POOLINGS
@pytest.mark.parametrize("options", [{}, {"concat_layers": True}, {"bidirectional": True}], ids=str)
def test_a_network_pools_what_its_stack_gives(
    pooling: str, options: dict[str, Any], tmp_path: Path
) -> None:
    def last_layers(folder: str, head: HeadConfig) -> tuple[Network, Tensor]:
        model = random_model(tmp_path / folder, "classify", vocab_size=30, head=head, **options)
        states = model.network.layout.allocate(1)
        return model.network, model.network.hidden(ids, single(states, len(ids)))

    ids = torch.arange(25)
    network, pooled = last_layers("pooled", HeadConfig.model_validate({"pooling": pooling}))
    _, plain = last_layers("plain", HeadConfig())
    expected = so_far(pooling, plain).float()
    torch.testing.assert_close(pooled, expected, atol=1e-5, rtol=1e-5)
    names = [entry.name for entry in network.layout.entries]
    assert names == ["0.c", "1.c", "pool", "pool.steps"]
    assert network.logits(pooled).shape == (25, 3)
