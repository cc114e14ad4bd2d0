"""Networks on the Triton kernels agree with the CPU's own kernels: whole, split and stepped."""

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sruserve.kernels import RaggedBatch, uses_triton
from sruserve.kernels.dispatch import interpreting
from sruserve.kernels.input_graphs import USES_BEFORE_CAPTURE
from sruserve.kernels.triton import tiles
from sruserve.model.folder import Model
from sruserve.model.heads.config import HeadConfig
from sruserve.model.runtime import Runtime
from sruserve.model.state import StateLayout
from tests.support import random_model

FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "same-width": {"input_size": 24, "rescale": True},
    "norm-before": {"input_size": 24, "layer_norm": True},
    "norm-after": {"layer_norm": True, "normalize_after": True},
    "projection": {"input_size": 40, "hidden_size": 40, "projection_size": 8},
    "no-skip-tanh": {"has_skip_term": False, "use_tanh": True},
    "updated-reset": {"reset_gate": "updated"},
    "input-first": {"proj_input_to_hidden_first": True},
    "lrn": {"model_type": "lrn", "rms_norm": True},
    "qrnn": {"model_type": "qrnn", "window": 2},
    "lstm": {"model_type": "lstm", "proj_size": 9},
    "gru": {"model_type": "gru", "reset_after": False},
    "srupp": {"model_type": "srupp", "proj_size": 10, "num_heads": 2, "window": 4},
    "srupp-normed": {"model_type": "srupp", "proj_size": 10, "window": 4, "layer_norm": True},
    "cnn": {"model_type": "cnn", "hidden_size": 5, "padding": [2, 0, 4], "min_length": 9},
}
LENGTHS = [5, 0, 9, 1]


@pytest.fixture(scope="module", params=FORMS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return random_model(tmp_path_factory.mktemp("model") / "m", **FORMS[request.param])


def random_states(network: Runtime, rows: int, g: torch.Generator) -> Tensor:
    """Random numbers, but for the rings of SRU++, which count their positions."""
    states = torch.randn(rows, network.layout.width, generator=g)
    for entry in network.layout.entries:
        if entry.name.endswith(".at"):
            states[:, network.layout.column(entry.name)] = torch.arange(rows) % 8
    return states


def run(model: Model) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden outputs, scores and states of a ragged batch."""
    network, g = model.network, torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 95, (sum(LENGTHS),), generator=g)
    states = random_states(network, 2 * len(LENGTHS), g)
    source = torch.tensor([0, 2, -1, 4])
    batch = RaggedBatch(
        torch.tensor([0, *LENGTHS]).cumsum(0), states, source, torch.tensor([0, 3, 5, 7])
    )
    hidden = network.hidden(tokens, batch)
    return hidden, network.logits(hidden), states


@pytest.fixture(scope="module")
def whole(model: Model) -> tuple[Tensor, Tensor, Tensor]:
    """What `run` gives without chunks of time."""
    with np.errstate(all="ignore"):
        return run(model)


def test_a_network_computes_what_it_does_on_the_cpu(
    model: Model, whole: tuple[Tensor, Tensor, Tensor], tmp_path: Path
) -> None:
    assert uses_triton(torch.device("cpu"))
    options = model.config.rnn.model_dump(exclude_defaults=True, mode="json")
    options["model_type"] = model.config.model_type
    with interpreting(False):
        expected = run(random_model(tmp_path / "m", **options))
    torch.testing.assert_close(whole, expected, rtol=1e-5, atol=1e-5)


def test_chunks_of_time_change_nothing(
    model: Model, whole: tuple[Tensor, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.network, "_chunk_rows", 4)
    # Not bit for bit: the rows of the interpreter's products depend on how many there are.
    torch.testing.assert_close(run(model), whole, rtol=1e-5, atol=1e-5)


def test_graphs_of_whole_inputs_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sruserve.model.network.captures_inputs", lambda _device: True)
    head = HeadConfig.model_validate({"pooling": "mean"})
    made = random_model(tmp_path / "m", "classify", vocab_size=95, head=head, layer_norm=True)
    network, rows = made.network, torch.arange(3)
    states, results = network.layout.allocate(len(rows)), []
    batch = RaggedBatch(torch.tensor([0, 4, 4, 9]), states, rows.where(rows < 2, -1), rows)
    for _ in range(USES_BEFORE_CAPTURE + 2):  # as it is, at last captured, replayed
        states.fill_(0.5)
        results.append(
            (network.hidden(torch.arange(9), batch, torch.tensor([3, 8])), states.clone())
        )
    assert len(network._graphs._buckets) == 1  # type: ignore[attr-defined]
    for each in results[1:]:
        # Not bit for bit: the rows of the interpreter's products depend on how many there are.
        torch.testing.assert_close(each, results[0], rtol=1e-5, atol=1e-5)
    with_attention = random_model(tmp_path / "other", **FORMS["srupp"])
    assert with_attention.network._graphs is None  # type: ignore[attr-defined]
    head = HeadConfig.model_validate({"pooling": "final", "final": ["1.c"]})
    with_own_states = random_model(tmp_path / "final", "classify", vocab_size=95, head=head)
    assert with_own_states.network._graphs is None  # type: ignore[attr-defined]


def test_a_gpu_compiles_products_of_many_rows_before_it_serves_as_those_of_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, rows = random_model(tmp_path / "m").network, list[int]()
    states = network.layout.allocate(1)
    monkeypatch.setattr(StateLayout, "allocate", lambda *_: states)
    monkeypatch.setattr(network, "device", torch.device("cuda"))

    def hidden(inputs: Tensor, _batch: RaggedBatch) -> Tensor:
        rows.append(len(inputs))
        return torch.zeros(1, 24)

    monkeypatch.setattr(network, "hidden", hidden)
    network.warm_up()
    assert min(rows) < tiles.DESCRIPTOR_ROWS <= max(rows)


def test_graphs_of_whole_inputs_keep_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sruserve.model.network.captures_inputs", lambda _device: True)
    model = random_model(tmp_path / "m")
    network = weakref.ref(model.network)
    assert network()._graphs is not None  # type: ignore[union-attr]
    gc.disable()  # a server has frozen what it loaded, and never looks for circles in it
    try:
        del model
        assert network() is None
    finally:
        gc.enable()


def test_several_poolings_are_computed_in_chunks_of_time_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kinds = ["max", "last", "final", "mean"]
    head = HeadConfig.model_validate({"pooling": kinds, "final": ["1.c"]})
    tokens, rows = torch.randint(0, 95, (sum(LENGTHS),)), torch.arange(len(LENGTHS))
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)

    def pooled(folder: str, chunk_rows: int) -> tuple[Tensor, Tensor]:
        network = random_model(tmp_path / folder, "classify", vocab_size=95, head=head).network
        monkeypatch.setattr(network, "_chunk_rows", chunk_rows)
        states = network.layout.allocate(len(rows))
        batch = RaggedBatch(offsets, states, torch.full_like(rows, -1), rows)
        return network.hidden(tokens, batch), states

    whole, in_chunks = pooled("whole", 1024), pooled("chunks", 4)
    torch.testing.assert_close(in_chunks, whole, rtol=1e-5, atol=1e-5)
    with interpreting(False):
        on_the_cpu = pooled("cpu", 1024)
    torch.testing.assert_close(on_the_cpu, whole, rtol=1e-5, atol=1e-5)


def test_chunks_of_time_change_nothing_in_attention_over_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [{"type": "linear", "size": 1}]
    head = HeadConfig.model_validate({"pooling": "attention", "attention": layers})
    model = random_model(tmp_path / "m", "classify", vocab_size=95, head=head)
    whole = run(model)
    monkeypatch.setattr(model.network, "_chunk_rows", 4)
    torch.testing.assert_close(run(model), whole, rtol=1e-5, atol=1e-5)
    with interpreting(False):
        expected = run(random_model(tmp_path / "cpu", "classify", vocab_size=95, head=head))
    torch.testing.assert_close(whole, expected, rtol=1e-5, atol=1e-5)


def test_a_step_of_the_decoder_is_a_sequence_of_one_token(model: Model) -> None:
    network, g = model.network, torch.Generator().manual_seed(1)
    rows, count = random_states(network, 8, g), 3
    tokens = torch.randint(0, 95, (count,), generator=g)
    source, target = torch.tensor([0, -1, 4]), torch.tensor([0, 3, 5])
    states = rows.clone()
    decoder = network.decoder(states)
    assert decoder is not None
    logits = decoder.logits(tokens, source, target)
    expected_states = rows.clone()
    batch = RaggedBatch(torch.arange(count + 1), expected_states, source, target)
    expected = network.logits(network.hidden(tokens, batch))
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(states, expected_states, rtol=1e-5, atol=1e-5)


def test_what_is_not_sampled_on_the_gpu_has_no_decoder(tmp_path: Path) -> None:
    states = torch.zeros(1, 48)
    kinds: dict[str, dict[str, Any]] = {
        "words": {"vocab_size": 5000},
        "classes": {"task": "classify", "vocab_size": 95},
        "features": {"task": "encode"},
    }
    for name, options in kinds.items():
        assert random_model(tmp_path / name, **options).network.decoder(states) is None


def test_a_bidirectional_network_computes_what_it_does_on_the_cpu(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"task": "classify", "vocab_size": 95, "bidirectional": True}
    result = run(random_model(tmp_path / "m", **options))
    with interpreting(False):
        expected = run(random_model(tmp_path / "m", **options))
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
