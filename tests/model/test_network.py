"""Any split equals the whole, and batch equals single: bit for bit, in both dtypes."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.model.folder import Model
from sruserve.model.runtime import Runtime
from tests.memory import least_growth, malloc_bytes, python_blocks
from tests.support import random_model

FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "same-width": {"input_size": 24, "rescale": True},
    "norm-before": {"input_size": 24, "layer_norm": True},
    "norm-after": {"layer_norm": True, "normalize_after": True},
    "projection": {"input_size": 40, "hidden_size": 40, "projection_size": 8},
    "tanh": {"use_tanh": True},
    "no-skip": {"has_skip_term": False},
    "updated-reset": {"reset_gate": "updated"},
    "input-first": {"proj_input_to_hidden_first": True},
    "deep": {"hidden_size": 1040, "input_size": 1040, "num_layers": 1},
}
STEPS = 60


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=FORMS, ids=str)
def model(
    request: pytest.FixtureRequest, dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> Model:
    folder: Path = tmp_path_factory.mktemp("model")
    return random_model(folder / "model", dtype=dtype, **FORMS[request.param])


def run(network: Runtime, tokens: list[Tensor], states: Tensor) -> list[Tensor]:
    """Continue row b of `states` with tokens[b]; return each sequence's outputs."""
    sizes = [len(t) for t in tokens]
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    rows = torch.arange(len(tokens))
    h = network.hidden(torch.cat(tokens), RaggedBatch(offsets, states, rows, rows))
    return list(torch.split(h, sizes))


def some_tokens(length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 95, (length,), generator=torch.Generator().manual_seed(seed))


@settings(max_examples=12)
@given(cuts=st.lists(st.integers(1, STEPS - 1), max_size=6))
def test_any_split_of_a_sequence_gives_the_same_outputs_and_state(
    model: Model, cuts: list[int]
) -> None:
    network, tokens = model.network, some_tokens(STEPS)
    whole_state = network.layout.allocate(1)
    (whole,) = run(network, [tokens], whole_state)
    state, parts = network.layout.allocate(1), []
    edges = [0, *sorted(set(cuts)), STEPS]
    for begin, end in pairwise(edges):
        parts += run(network, [tokens[begin:end]], state)
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(state, whole_state)


@settings(max_examples=8)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=9))
def test_company_in_a_batch_changes_nothing(model: Model, lengths: list[int]) -> None:
    network = model.network
    tokens = [some_tokens(length, seed) for seed, length in enumerate(lengths)]
    states = network.layout.allocate(len(lengths))
    together = run(network, tokens, states)
    for b, alone in enumerate(tokens):
        state = network.layout.allocate(1)
        (single,) = run(network, [alone], state)
        assert torch.equal(single, together[b])
        assert torch.equal(state[0], states[b])
        assert torch.equal(network.logits(single), network.logits(together[b]))


def test_a_sequence_longer_than_a_piece_is_the_same_in_short_steps(model: Model) -> None:
    network, tokens = model.network, some_tokens(2500)
    whole_state = network.layout.allocate(1)
    (whole,) = run(network, [tokens], whole_state)
    state, parts = network.layout.allocate(1), []
    for chunk in torch.split(tokens, 700):
        parts += run(network, [chunk], state)
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(state, whole_state)


def test_only_the_wanted_rows_come_back(model: Model) -> None:
    network, tokens = model.network, some_tokens(2100)
    (whole,) = run(network, [tokens], network.layout.allocate(1))
    output_rows = torch.tensor([0, 5, 1023, 1024, 2099])
    states, row = network.layout.allocate(1), torch.zeros(1, dtype=torch.int64)
    batch = RaggedBatch(torch.tensor([0, 2100]), states, row, row)
    assert torch.equal(network.hidden(tokens, batch, output_rows), whole[output_rows])


def test_a_bidirectional_network_reads_whole_inputs_in_any_company(
    tmp_path: Path, dtype: str
) -> None:
    model = random_model(tmp_path / "m", "classify", dtype, vocab_size=95, bidirectional=True)
    assert not model.network.supports_streaming
    tokens = [some_tokens(n, n) for n in (1, 30, 7, 1500)]
    together = run(model.network, tokens, model.network.layout.allocate(4))
    for alone, expected in zip(tokens, together, strict=True):
        assert torch.equal(
            run(model.network, [alone], model.network.layout.allocate(1))[0], expected
        )


def test_one_thread_and_two_give_the_same_bits(tmp_path: Path, dtype: str) -> None:
    model = random_model(
        tmp_path / "m", dtype=dtype, input_size=512, hidden_size=512, num_layers=3, layer_norm=True
    )
    network, before, results = model.network, torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            states = network.layout.allocate(3)
            hidden = run(network, [some_tokens(n, n) for n in (1, 70, 1500)], states)
            results.append([*hidden, states, *map(network.logits, hidden)])
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


def test_memory_does_not_grow_over_a_thousand_calls(tmp_path: Path) -> None:
    model = random_model(tmp_path / "m")
    tokens = some_tokens(50)
    state = model.network.layout.allocate(1)

    def calls() -> None:
        for _ in range(250):
            run(model.network, [tokens], state)

    assert least_growth(malloc_bytes, calls) < 1 << 14
    assert least_growth(python_blocks, calls) < 125


def test_ten_thousand_tokens_in_one_call_equal_ten_calls(tmp_path: Path) -> None:
    network = random_model(tmp_path / "m").network
    tokens = some_tokens(10_000)
    one, ten = network.layout.allocate(1), network.layout.allocate(1)
    (whole,) = run(network, [tokens], one)
    parts = [run(network, [chunk], ten)[0] for chunk in torch.split(tokens, 1000)]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(one, ten)


def test_a_warm_up_makes_few_scores_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = random_model(tmp_path / "lm", vocab_size=200_000, hidden_size=2).network
    made: list[int] = []
    logits = network.logits

    def counted(hidden: Tensor) -> Tensor:
        scores = logits(hidden)
        made.append(scores.numel())
        return scores

    monkeypatch.setattr(network, "logits", counted)
    network.warm_up()
    assert 1 << 25 < max(made) <= 1 << 26
