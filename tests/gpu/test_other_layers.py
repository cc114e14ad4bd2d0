"""Gated layers and SRU++ on a GPU: what the CPU computes, captured in bursts as launched."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.kernels.graphs import Eager, GraphedDecode
from sruserve.kernels.slots import WINDOW, DecodeInputs
from sruserve.model.folder import Model
from tests.support import random_model

FORMS: dict[str, dict[str, Any]] = {
    "lstm": {"model_type": "lstm"},
    "lstm-projected": {"model_type": "lstm", "proj_size": 9},
    "gru": {"model_type": "gru"},
    "gru-reset-before": {"model_type": "gru", "reset_after": False},
    "rnn": {"model_type": "rnn", "nonlinearity": "relu"},
    "atr": {"model_type": "atr"},
    "srupp": {"model_type": "srupp", "proj_size": 8, "num_heads": 2, "window": 5},
    "srupp-normed": {"model_type": "srupp", "proj_size": 8, "window": 5, "layer_norm": True},
}
LENGTHS = [12, 1, 0, 7]
STEPS = 5


@pytest.fixture(params=FORMS)
def models(
    request: pytest.FixtureRequest, device: torch.device, tmp_path: Path
) -> tuple[Model, Model]:
    """The same model on the device under test, and on the CPU."""
    form = FORMS[request.param]
    return (
        random_model(tmp_path / "gpu" / "m", device=device, **form),
        random_model(tmp_path / "cpu" / "m", **form),
    )


def run(model: Model, split: bool) -> tuple[Tensor, Tensor]:
    """Outputs and states of a batch, whole or in two parts."""
    network, rows = model.network, torch.arange(len(LENGTHS))
    tokens = torch.randint(0, 95, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0))
    states = network.layout.allocate(len(LENGTHS), network.device)
    whole, outputs = list(torch.split(tokens, LENGTHS)), []
    parts = [[t[:3] for t in whole], [t[3:] for t in whole]] if split else [whole]
    for part in parts:
        offsets = torch.tensor([0, *map(len, part)]).cumsum(0)
        h = network.hidden(torch.cat(part), RaggedBatch(offsets, states, rows, rows))
        outputs.append(torch.split(h.cpu(), [len(t) for t in part]))
    joined = [torch.cat(pieces) for pieces in zip(*outputs, strict=True)]
    return torch.cat(joined), states.cpu()


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
def test_a_gpu_computes_what_the_cpu_does(models: tuple[Model, Model], split: bool) -> None:
    on_gpu, on_cpu = models
    torch.testing.assert_close(run(on_gpu, split), run(on_cpu, False), rtol=1e-4, atol=1e-4)


def test_a_captured_burst_picks_what_its_launches_do(models: tuple[Model, Model]) -> None:
    network = models[0].network
    count, results = 3, []
    rows = torch.arange(count)
    streams = DecodeInputs(
        tokens=rows,
        source=torch.tensor([-1, 1, 4]),
        target=rows,
        limits=torch.full((count,), STEPS),
        seed=rows + 1,
        choice=torch.zeros(count, dtype=torch.int64),
        draw=torch.zeros(count, dtype=torch.int64),
        temperature=torch.ones(count),
        top_p=torch.ones(count),
        min_p=torch.zeros(count),
        penalty=torch.ones(count),
        top_k=torch.zeros(count, dtype=torch.int32),
        window=torch.full((count, WINDOW), -1),
    )
    for recorder in (Eager(network.device), None):
        states = network.layout.allocate(6, network.device)
        decoder = network.decoder(states)
        assert decoder is not None
        bursts = GraphedDecode(decoder.step, network.device, count, STEPS, recorder)
        states.zero_()
        results.append((bursts.run(streams, STEPS), states.cpu()))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
