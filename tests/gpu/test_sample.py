"""The sampler on a GPU: the tokens of the engine's `Sampler`, for any other streams."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sruserve.kernels.slots import WINDOW
from sruserve.kernels.triton.sample import sample_kernel, sample_rows
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.sampling.sampler import Sampler
from tests.interpreter import INTERPRETED

STREAMS = 3 if INTERPRETED else 64
STEPS = 2 if INTERPRETED else 12
VOCABULARIES = [5, 95] if INTERPRETED else [1, 2, 5, 32, 33, 95, 256, 257, 1000, 4096]
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "cold": {"temperature": 0.3},
    "nearly greedy": {"temperature": 1e-38},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.1},
    "penalty": {"repetition_penalty": 1.5},
    "all": {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.2},
}


def rows_of(
    sampling: list[Sampling], windows: list[list[int]], uniforms: Tensor, device: torch.device
) -> dict[str, Any]:
    """The arguments of `sample_rows` after the logits."""
    streams = len(sampling)
    window = torch.tensor([[-1] * (WINDOW - len(w)) + w for w in windows])
    made = {
        "uniforms": uniforms,
        "temperature": torch.tensor([s.temperature for s in sampling]),
        "top_k": torch.tensor([s.top_k for s in sampling], dtype=torch.int32),
        "top_p": torch.tensor([s.top_p for s in sampling]),
        "min_p": torch.tensor([s.min_p for s in sampling]),
        "penalty": torch.tensor([s.repetition_penalty for s in sampling]),
        "window": window,
        "position": torch.zeros(streams, dtype=torch.int64),
        "out": torch.full((streams,), -7),
        "history": torch.full((len(uniforms), streams), -7),
    }
    return {name: value.to(device) for name, value in made.items()}


def burst(
    kind: dict[str, Any], vocabulary: int, device: torch.device
) -> tuple[Tensor, dict[str, Any], Tensor]:
    """Logits (steps, streams, vocabulary), the rows, and the sampler's tokens (steps, streams)."""
    numbers = np.random.default_rng(vocabulary)
    sampling = [Sampling(**kind)] * STREAMS
    windows = [numbers.integers(0, vocabulary, n % WINDOW).tolist() for n in range(STREAMS)]
    logits = torch.from_numpy(numbers.normal(0, 2, (STEPS, STREAMS, vocabulary))).float()
    logits[1::2] = logits[1::2].round()  # ties
    uniforms = numbers.random((STEPS, STREAMS))
    sampler = Sampler(sampling, windows, uniforms)
    picked = torch.stack([sampler(logits[step], step) for step in range(STEPS)])
    return logits.to(device), rows_of(sampling, windows, torch.from_numpy(uniforms), device), picked


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_it_picks_what_the_sampler_picks(
    kind: dict[str, Any], vocabulary: int, device: torch.device
) -> None:
    logits, rows, picked = burst(kind, vocabulary, device)
    for step in range(STEPS):
        sample_rows(logits[step], **rows)
        differ = rows["out"].cpu() != picked[step]
        # The exponential rounds as it likes, and a number may lie where that decides.
        assert differ.float().mean() <= (0.02 if kind.get("temperature", 1.0) else 0.0)
        # The sampler's tokens go on, so that this does not change the windows.
        rows["window"][:, step % WINDOW] = picked[step].to(device)
        rows["history"][step] = rows["out"]
    assert (rows["history"] >= 0).all()
    assert (rows["history"] < vocabulary).all()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_stream_picks_the_same_alone_and_in_company(
    kind: dict[str, Any], device: torch.device
) -> None:
    logits, rows, _ = burst(kind, 95, device)
    for row in (0, STREAMS - 1):
        alone = {
            name: (value[:, row : row + 1] if name in ("uniforms", "history") else value[[row]])
            .contiguous()
            .clone()
            for name, value in rows.items()
        }
        company = {name: value.clone() for name, value in rows.items()}
        for step in range(STEPS):
            sample_rows(logits[step], **company)
            sample_rows(logits[step, row : row + 1].contiguous(), **alone)
        assert torch.equal(alone["history"][:, 0], company["history"][:, row])
        assert torch.equal(alone["window"][0], company["window"][row])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN
def test_rubbish_in_slots_out_of_use_harms_nobody(device: torch.device) -> None:
    logits, rows, picked = burst(KINDS["all"], 95, device)
    scores = logits[0].clone()
    scores[0], scores[1] = torch.nan, -torch.inf
    for name, value in rows.items():
        if name in ("temperature", "top_p", "min_p", "penalty"):
            value[0] = torch.nan
    rows["position"][:2] = torch.tensor([-(2**63), 10**12], device=device)
    rows["top_k"][1] = -3
    rows["window"][0] = 10**12
    sample_rows(scores, **rows)
    assert torch.equal(rows["out"][2:].cpu(), picked[0, 2:])
    assert ((rows["out"] >= 0) & (rows["out"] < 95)).all()


@pytest.mark.skipif(INTERPRETED, reason="graphs are of the GPU")
def test_a_captured_burst_replays_and_other_numbers_compile_nothing(device: torch.device) -> None:
    logits, rows, _ = burst(KINDS["all"], 95, device)
    eager = {name: value.clone() for name, value in rows.items()}
    for _ in range(STEPS):
        sample_rows(logits[0], **eager)
    kernels = sample_kernel.device_caches[torch.cuda.current_device()][0]
    before = len(kernels)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sample_rows(logits[0], **rows)
    for _ in range(STEPS):
        graph.replay()
    for name, value in eager.items():
        assert torch.equal(rows[name], value)
    assert len(kernels) == before
