"""`sruserve.save`: the folder of a live module answers as the module does."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import sruserve
from sruserve.cli import app
from sruserve.kernels import single
from sruserve.model.folder import Model, load_model
from tests.tracing.expected import expected, made
from tests.tracing.networks import NETWORKS, WORDS

LENGTHS = (1, 3, 8, 21)


def answers(model: Model, x: Tensor) -> Tensor:
    """What a server replies to one input: (steps, outputs), or (1, outputs)."""
    network = model.network
    hidden = network.hidden(x, single(network.layout.allocate(1), len(x)))
    result = network.activation(network.logits(hidden))
    return result if model.config.answers_by_step else result[-1:]


# Of torch and of sru, about their own code.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{start}")
    for start in (
        "LSTM with projections",
        "Just-in-time loading",
        "Running SRU on CPU",
        ".*torch.jit.script",
        "Initializing zero-element",
    )
]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_folder_of_a_live_module_gives_its_answers(name: str, tmp_path: Path) -> None:
    network = NETWORKS[name]
    module = made(network)
    saved = sruserve.save(module, tmp_path / "model", cast("Any", network.task), **network.options)
    model = load_model(tmp_path / "model")
    assert model.digest == saved.digest
    for field, value in network.head.items():
        assert getattr(model.config.head, field) == value
    for field, value in network.config.items():
        assert getattr(model.config, field) == value
    for length in LENGTHS:
        torch.manual_seed(length)
        x = torch.randn(length, model.config.width)
        if model.config.vocab_size is not None:
            x = torch.randint(WORDS, (length,))
        theirs = expected(module, model, x, time_first=isinstance(module, _TIME_FIRST))
        ours = answers(model, x)
        if len(ours) > len(theirs):  # a module that only returns the last step
            ours = ours[-1:]
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_verify_reads_the_case_beside_a_saved_model(name: str, tmp_path: Path) -> None:
    network = NETWORKS[name]
    folder = tmp_path / "model"
    sruserve.save(made(network), folder, cast("Any", network.task), **network.options)
    result = CliRunner().invoke(app, ["verify", str(folder), str(folder / "case.safetensors")])
    assert result.exit_code == 0, result.output
    assert "agrees" in result.output


_TIME_FIRST = (NETWORKS["a language model"].build().__class__,)
