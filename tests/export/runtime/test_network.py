"""ONNX Runtime computes what the compiled kernels compute, over the same state rows."""

from pathlib import Path

import onnx as onnx_module
import pytest
import torch
from torch import Tensor

from sruserve.export.onnx.export import export_onnx
from sruserve.export.runtime.file import read_onnx
from sruserve.export.runtime.load import load_any
from sruserve.kernels import RaggedBatch
from sruserve.model.errors import CaseError
from sruserve.model.folder import Model, load_model, save_model
from sruserve.model.runtime import Runtime
from tests.export.onnx.networks import NAMES, config_of
from tests.support import random_tensors

LENGTHS = (7, 1, 4, 0, 12, 1)


def both(folder: Path, name: str) -> tuple[Model, Model]:
    """The same network as a model folder, and as ONNX files."""
    config = config_of(name)
    save_model(folder / "native", config, random_tensors(config))
    export_onnx(folder / "native", folder / "onnx")
    return load_model(folder / "native"), load_any(folder / "onnx")


def inputs_of(network: Runtime, steps: int) -> Tensor:
    generator = torch.Generator().manual_seed(steps)
    if network.config.vocab_size is None:
        return torch.randn(steps, network.config.width, generator=generator)
    return torch.randint(network.config.vocab_size, (steps,), generator=generator)


def close(ours: Tensor, theirs: Tensor) -> None:
    scale = max(1.0, float(theirs.abs().max())) if theirs.numel() else 1.0
    torch.testing.assert_close(ours / scale, theirs / scale, rtol=0, atol=1e-5)


def answers(network: Runtime, hidden: Tensor) -> Tensor:
    return hidden if network.config.outputs is None else network.logits(hidden)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("pair")])
def test_a_batch_of_sequences_gives_the_answers_and_states_of_the_kernels(
    tmp_path: Path, name: str
) -> None:
    native, onnx = both(tmp_path, name)
    assert onnx.digest == native.digest
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    inputs = inputs_of(native.network, sum(LENGTHS))
    source = torch.tensor([0, -1, 2, 3, -1, 5]) if native.network.supports_streaming else None
    target = torch.tensor([0, 1, 2, -1, 4, 5])
    results = []
    for network in (native.network, onnx.network):
        states = network.layout.allocate(6)
        counts = any(entry.name.endswith((".at", ".steps")) for entry in network.layout.entries)
        if source is not None and not counts:
            states[:] = torch.linspace(0, 1, states.numel()).view_as(states)
        batch = RaggedBatch(offsets, states, target if source is None else source, target)
        last_rows = offsets[1:][offsets.diff() > 0] - 1
        ends = answers(network, network.hidden(inputs, batch, last_rows))
        results.append((ends, states))
    for ours, theirs in zip(results[1], results[0], strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("name", ["sru", "srupp", "srupp-both-ways", "classify-features"])
def test_the_infinite_features_of_one_sequence_change_no_other(tmp_path: Path, name: str) -> None:
    _, onnx = both(tmp_path, name)
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    inputs = inputs_of(onnx.network, sum(LENGTHS))
    nowhere, rows = torch.full((len(LENGTHS),), -1), torch.arange(len(LENGTHS))
    results = []
    for first in (float(inputs[0, 0]), torch.inf):
        inputs[0] = first
        states = onnx.network.layout.allocate(len(LENGTHS))
        batch = RaggedBatch(offsets, states, nowhere, rows)
        ends = onnx.network.hidden(inputs, batch, offsets[2:][offsets[1:].diff() > 0] - 1)
        results.append((ends, states[1:]))
    for hostile, alone in zip(results[1], results[0], strict=True):
        assert torch.equal(hostile, alone)


@pytest.mark.parametrize("name", ["sru", "lstm", "srupp", "classify-mean", "generate", "qrnn"])
def test_rows_between_the_ends_are_answered_too(tmp_path: Path, name: str) -> None:
    native, onnx = both(tmp_path, name)
    inputs, offsets = inputs_of(native.network, 9), torch.tensor([0, 5, 9])
    nowhere = torch.tensor([-1, -1])
    rows = []
    for network in (native.network, onnx.network):
        batch = RaggedBatch(offsets, network.layout.allocate(1), nowhere, nowhere)
        rows.append(answers(network, network.hidden(inputs, batch)))
        assert not batch.states.any()
    close(rows[1], rows[0])


@pytest.mark.parametrize("name", ["pair-last", "pair-attention"])
def test_pairs_are_compared(tmp_path: Path, name: str) -> None:
    native, onnx = both(tmp_path, name)
    lengths = [3, 6, 5, 1]
    inputs, offsets = inputs_of(native.network, 15), torch.tensor([0, *lengths]).cumsum(0)
    scores = []
    for network in (native.network, onnx.network):
        states, rows = network.layout.allocate(4), torch.arange(4)
        hidden = network.hidden(inputs, RaggedBatch(offsets, states, rows, rows))
        scores.append(network.compare(hidden, lengths))
    close(scores[1], scores[0])


@pytest.mark.parametrize("name", ["classify-attention-both-ways", "classify-final"])
def test_rows_that_a_graph_does_not_answer_are_refused(tmp_path: Path, name: str) -> None:
    _, onnx = both(tmp_path, name)
    network, nowhere = onnx.network, torch.tensor([-1])
    batch = RaggedBatch(torch.tensor([0, 5]), network.layout.allocate(1), nowhere, nowhere)
    with pytest.raises(CaseError, match="at the end of an input only"):
        network.hidden(inputs_of(network, 5), batch)


def test_a_batch_without_sequences_has_no_answers(tmp_path: Path) -> None:
    _, onnx = both(tmp_path, "generate")
    nothing = torch.zeros(0, dtype=torch.int64)
    batch = RaggedBatch(torch.zeros(1, dtype=torch.int64), torch.zeros(1, 48), nothing, nothing)
    assert onnx.network.hidden(nothing, batch).shape == (0, 11)


def test_a_server_computes_neither_labels_nor_scores_in_the_graph(tmp_path: Path) -> None:
    both(tmp_path, "tag-crf")
    file = read_onnx(tmp_path / "onnx" / "model.onnx")
    served = onnx_module.load_from_string(file.served())
    assert [output.name for output in served.graph.output] == ["logits", "new_state"]
    scans = [sum(n.op_type == "Scan" for n in m.graph.node) for m in (file.model, served)]
    assert scans == [4, 2]


def test_a_network_says_what_runs_it_and_how_exactly(tmp_path: Path) -> None:
    _, onnx = both(tmp_path, "generate")
    assert onnx.network.kernel.startswith("ONNX Runtime")
    assert "CPUExecutionProvider" in onnx.network.kernel
    assert onnx.network.exactness.startswith("1e-5")


def test_log_probabilities_are_those_of_the_kernels(tmp_path: Path) -> None:
    for name in ("generate", "generate-mixture", "generate-adaptive"):
        native, onnx = both(tmp_path / name, name)
        scores = torch.randn(3, native.config.outputs or 0)
        close(onnx.network.log_probs(scores), native.network.log_probs(scores))
