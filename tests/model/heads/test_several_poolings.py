"""Several poolings side by side give the bits of each by itself, for any split and company."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sruserve.kernels import RaggedBatch, single
from sruserve.model.config import ModelConfig, read_config
from sruserve.model.errors import ConfigError
from sruserve.model.folder import Model
from sruserve.model.heads.config import HeadConfig
from tests.support import random_model

FINAL = ("1.c", "0.c")
LISTS = [
    ("last", "max", "mean"),
    ("mean", "last"),
    ("last", "max"),
    ("max", "mean"),
    ("last", "final"),
    ("final", "mean"),
    ("mean", "final", "max", "last"),
]
POOLINGS = pytest.mark.parametrize("poolings", LISTS, ids=" ".join)
ONE_LAYER_AFTER_ANOTHER: dict[str, Any] = {"concat_layers": True}


def head_of(*poolings: str) -> HeadConfig:
    final = FINAL if "final" in poolings else ()
    form = poolings if len(poolings) > 1 else poolings[0]
    return HeadConfig.model_validate({"pooling": form, "final": final})


def model_of(folder: Path, *poolings: str, dtype: str = "float32", **options: Any) -> Model:
    """A model whose stack has the same weights for all poolings."""
    path, head = folder / "-".join(poolings), head_of(*poolings)
    return random_model(path, "classify", dtype, vocab_size=30, head=head, **options)


def whole(model: Model, ids: Tensor) -> Tensor:
    """The row that the head reads for an input."""
    states = model.network.layout.allocate(1)
    return model.network.hidden(ids, single(states, len(ids)), torch.tensor([len(ids) - 1]))


@POOLINGS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", [{}, ONE_LAYER_AFTER_ANOTHER, {"bidirectional": True}], ids=str)
def test_each_pooling_has_the_bits_that_it_has_alone(
    poolings: tuple[str, ...], dtype: str, options: dict[str, Any], tmp_path: Path
) -> None:
    ids = torch.arange(29)
    together = model_of(tmp_path, *poolings, dtype=dtype, **options)
    alone = [whole(model_of(tmp_path, kind, dtype=dtype, **options), ids) for kind in poolings]
    row = whole(together, ids)
    assert row.dtype is getattr(torch, dtype)
    assert torch.equal(row, torch.cat(alone, 1))
    assert together.network.logits(row).shape == (1, 3)


@POOLINGS
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, 39), max_size=5, unique=True))
def test_any_split_gives_the_bits_of_the_whole(
    poolings: tuple[str, ...], cuts: list[int], tmp_path: Path
) -> None:
    model = model_of(tmp_path, *poolings)
    network, ids = model.network, torch.arange(40) % 30
    one, states = network.layout.allocate(1), network.layout.allocate(1)
    expected = network.hidden(ids, single(one, 40), torch.tensor([39]))
    for begin, end in pairwise([0, *sorted(cuts), 40]):
        batch = single(states, end - begin)
        row = network.hidden(ids[begin:end], batch, torch.tensor([end - begin - 1]))
    assert torch.equal(row, expected)
    assert torch.equal(states, one)


@POOLINGS
def test_company_changes_no_bits(poolings: tuple[str, ...], tmp_path: Path) -> None:
    model = model_of(tmp_path, *poolings)
    inputs = [torch.randint(30, (length,)) for length in (1, 40, 7, 1500)]
    offsets = torch.tensor([0, *map(len, inputs)]).cumsum(0)
    states, rows = model.network.layout.allocate(4), torch.arange(4)
    batch = RaggedBatch(offsets, states, torch.full_like(rows, -1), rows)
    together = model.network.hidden(torch.cat(inputs), batch, offsets[1:] - 1)
    assert torch.equal(together, torch.cat([whole(model, ids) for ids in inputs]))


def test_only_a_mean_and_a_maximum_remember_a_stream(tmp_path: Path) -> None:
    def own(*poolings: str) -> list[str]:
        entries = model_of(tmp_path, *poolings).network.layout.entries
        return [entry.name for entry in entries if entry.name.startswith("pool")]

    assert own("last", "final") == []
    assert own("last", "max") == ["pool", "pool.steps"]
    both = ["pool.max", "pool.max.steps", "pool.mean", "pool.mean.steps"]
    assert own("max", "last", "mean") == both


def test_one_pooling_is_written_as_a_name_and_several_as_a_list(tmp_path: Path) -> None:
    for poolings, written in (("mean",), "mean"), (("last", "mean"), ["last", "mean"]):
        model = model_of(tmp_path, *poolings)
        content = json.loads((tmp_path / "-".join(poolings) / "config.json").read_text())
        assert content["head"]["pooling"] == written
        assert model.config.head.poolings == poolings
        assert ModelConfig.model_validate(content) == model.config


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "twice": ("classify", {"pooling": ["mean", "mean"]}, "pooling names one of mean, mean twice"),
    "attention": (
        "classify", {"pooling": ["last", "attention"]}, "be 'last', 'mean', 'max' or 'final'"
    ),
    "alone": ("classify", {"pooling": ["mean"]}, "at least 2 items"),
    "unknown": ("classify", {"pooling": "middle"}, "'last', 'mean', 'max', 'attention' or 'final'"),
    "no entries": ("classify", {"pooling": ["last", "final"]}, "go together"),
    "no final": ("classify", {"pooling": ["last", "max"], "final": ["0.c"]}, "go together"),
    "pairs": ("pair", {"pooling": ["last", "max"]}, "are not for task pair"),
    "tags": ("tag", {"pooling": ["last", "max"]}, "task tag has no pooling"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_poolings_that_do_not_fit_are_refused(name: str, tmp_path: Path) -> None:
    task, head, problem = BAD[name]
    random_model(tmp_path / "m", task, vocab_size=30)  # type: ignore[arg-type]
    path = tmp_path / "m/config.json"
    content = json.loads(path.read_text())
    content["head"] |= head
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert problem in str(caught.value)
