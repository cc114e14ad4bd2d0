"""Guarantees 1 to 3 on one GPU, bit for bit: any split, any batch, step or sequence."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.model.folder import Model
from sruserve.model.heads.config import HeadConfig
from sruserve.model.runtime import Runtime
from tests.gpu.exact import assert_same
from tests.support import random_model

FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "same-width": {"input_size": 24, "rescale": True},
    "wide": {"input_size": 256, "hidden_size": 640, "num_layers": 3},
    "odd": {"input_size": 37, "hidden_size": 91},
    "norm-before": {"input_size": 24, "layer_norm": True},
    "norm-after": {"layer_norm": True, "normalize_after": True},
    "projection": {"input_size": 512, "hidden_size": 512, "projection_size": 128},
    "no-skip-tanh": {"has_skip_term": False, "use_tanh": True},
    "input-first": {"proj_input_to_hidden_first": True},
    "lrn": {"model_type": "lrn", "output_gate": True},
    "lrn-normed": {"model_type": "lrn", "rms_norm": True},
    "qrnn": {"model_type": "qrnn", "output_gate": False},
    "qrnn-windows": {"model_type": "qrnn", "window": 2, "zoneout": 0.1},
    "srupp": {"model_type": "srupp", "proj_size": 48, "num_heads": 2, "window": 9},
    "srupp-wide": {"model_type": "srupp", "proj_size": 256, "window": 40, "layer_norm": True},
    "cnn": {"model_type": "cnn", "padding": [2, 0, 4], "min_length": 9},
}
DTYPES = ["float32", "bfloat16", "float16"]
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.1, "float16": 0.02}
STEPS = 40


@pytest.fixture(scope="module", params=DTYPES)
def dtype(request: pytest.FixtureRequest, device: torch.device) -> str:
    if device.type == "cpu" and request.param != "float32":
        pytest.skip("16-bit types need a GPU")
    return str(request.param)


@pytest.fixture(scope="module", params=FORMS)
def model(
    request: pytest.FixtureRequest,
    dtype: str,
    device: torch.device,
    tmp_path_factory: pytest.TempPathFactory,
) -> Model:
    folder = tmp_path_factory.mktemp("model") / "m"
    return random_model(folder, dtype=dtype, device=device, **FORMS[request.param])


def some_tokens(length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 95, (length,), generator=torch.Generator().manual_seed(seed))


def run(network: Runtime, tokens: list[Tensor], states: Tensor) -> list[Tensor]:
    """Continue row b of `states` with tokens[b]; return each sequence's outputs."""
    sizes = [len(t) for t in tokens]
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    rows = torch.arange(len(tokens))
    h = network.hidden(torch.cat(tokens), RaggedBatch(offsets, states, rows, rows))
    return list(torch.split(h, sizes))


@pytest.mark.parametrize("cuts", [[1], [20], [1, 2, 3, 39], [7, 16, 24]], ids=str)
def test_any_split_of_a_sequence_gives_the_same_outputs_and_state(
    model: Model, cuts: list[int]
) -> None:
    network, tokens = model.network, some_tokens(STEPS)
    whole_state = network.layout.allocate(1, network.device)
    (whole,) = run(network, [tokens], whole_state)
    state, parts = network.layout.allocate(1, network.device), []
    for begin, end in pairwise([0, *cuts, STEPS]):
        parts += run(network, [tokens[begin:end]], state)
    assert_same(torch.cat(parts), whole)
    assert_same(state, whole_state)


@pytest.mark.parametrize("count", [2, 17, 300])
def test_company_in_a_batch_changes_nothing(model: Model, count: int) -> None:
    network = model.network
    if network.device.type == "cpu":
        count = min(count, 5)
    tokens = [some_tokens(1 + seed * 7 % 30, seed) for seed in range(count)]
    states = network.layout.allocate(count, network.device)
    together = run(network, tokens, states)
    for i in {0, 1, count // 2, count - 1}:
        alone_state = network.layout.allocate(1, network.device)
        (alone,) = run(network, [tokens[i]], alone_state)
        assert_same(together[i], alone)
        assert_same(states[i : i + 1], alone_state)
        assert_same(network.logits(together[i]), network.logits(alone))


@pytest.mark.parametrize("streams", [1, 3, 65, 257])
def test_a_decoding_step_is_a_sequence_of_one_token(model: Model, streams: int) -> None:
    network = model.network
    if network.device.type == "cpu":
        streams = min(streams, 5)
    start = torch.randn(streams, network.layout.width).to(network.device)
    rows = torch.arange(streams)
    tokens = some_tokens(streams)
    stepped, run_through = start.clone(), start.clone()
    decoder = network.decoder(stepped)
    assert decoder is not None
    on_device = rows.to(network.device)
    logits = decoder.logits(tokens.to(network.device), on_device, on_device)
    batch = RaggedBatch(torch.arange(streams + 1), run_through, rows, rows)
    hidden = network.hidden(tokens, batch)
    assert_same(stepped, run_through)
    assert_same(logits, network.logits(hidden))


def test_chunks_of_time_beside_products_change_nothing(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = model.network
    tokens = [some_tokens(n, n) for n in (40, 3, 0, 40, 17)]
    whole_states = network.layout.allocate(5, network.device)
    whole = torch.cat(run(network, tokens, whole_states))
    for rows in (10, 33):
        monkeypatch.setattr(network, "_chunk_rows", rows)
        states = network.layout.allocate(5, network.device)
        assert_same(torch.cat(run(network, tokens, states)), whole)
        assert_same(states, whole_states)


def test_a_gpu_computes_what_the_cpu_does(model: Model, tmp_path: Path) -> None:
    options = model.config.rnn.model_dump(exclude_defaults=True, mode="json")
    options["model_type"] = model.config.model_type
    on_cpu = random_model(tmp_path / "m", **options)
    tokens = [some_tokens(n, n) for n in (40, 1, 13)]
    states = model.network.layout.allocate(3, model.network.device)
    result = torch.cat(run(model.network, tokens, states)).float().cpu()
    expected_states = on_cpu.network.layout.allocate(3)
    expected = torch.cat(run(on_cpu.network, tokens, expected_states))
    tolerance = TOLERANCE[model.dtype]
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(states.cpu(), expected_states, rtol=tolerance, atol=tolerance)


def test_fast_kernels_agree_to_rounding(device: torch.device, dtype: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"input_size": 256, "hidden_size": 256, "projection_size": 64}
    models = [
        random_model(tmp_path / str(fast), dtype=dtype, device=device, fast=fast, **options)
        for fast in (False, True)
    ]
    for count in (1, 5, 300) if device.type == "cuda" else (1, 5):
        tokens = [some_tokens(3, seed) for seed in range(count)]
        result = []
        for model in models:
            states = model.network.layout.allocate(count, device)
            hidden = torch.cat(run(model.network, tokens, states))
            decoder = model.network.decoder(states)
            assert decoder is not None
            rows = torch.arange(count, device=device)
            result.append((hidden, decoder.logits(some_tokens(count).to(device), rows, rows)))
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(*result, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "head", [HeadConfig(cutoffs=(10, 35), size=16), HeadConfig(experts=3)], ids=["words", "mixture"]
)
def test_a_row_has_the_scores_it_has_alone_under_every_head(
    head: HeadConfig, device: torch.device, tmp_path: Path
) -> None:
    network = random_model(tmp_path / "m", device=device, head=head).network
    hidden = torch.randn(37, 24, generator=torch.Generator().manual_seed(0)).to(device)
    scores = network.log_probs(network.logits(hidden))
    for row in (0, 1, 2, 35):
        alone = network.log_probs(network.logits(hidden[row : row + 1].clone()))
        assert_same(scores[row : row + 1], alone)
