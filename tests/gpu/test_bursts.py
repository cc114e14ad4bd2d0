"""Captured bursts: a replay equals the same single steps, for any other streams."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from sruserve.kernels.graphs import Eager, GraphedDecode
from sruserve.kernels.slots import WINDOW, DecodeInputs, Slots
from sruserve.model.folder import Model
from tests.gpu.exact import assert_same
from tests.support import random_model

DTYPES = ["float32", "bfloat16"]
ROWS = 400


@pytest.fixture(scope="module", params=DTYPES)
def model(
    request: pytest.FixtureRequest, device: torch.device, tmp_path_factory: pytest.TempPathFactory
) -> Model:
    if device.type == "cpu" and request.param != "float32":
        pytest.skip("16-bit types need a GPU")
    folder = tmp_path_factory.mktemp("model") / "m"
    sizes: dict[str, Any] = {
        "input_size": 64,
        "hidden_size": 128,
        "projection_size": 32,
        "num_layers": 3,
    }
    return random_model(folder, dtype=request.param, device=device, **sizes)


def some_streams(count: int, steps: int) -> DecodeInputs:
    """Streams with every kind of sampling, half of them in place, some from zeros."""
    g = torch.Generator().manual_seed(count)
    order = torch.randperm(ROWS, generator=g)
    source, target = order[:count].clone(), order[-count:].clone()
    source[::2] = target[::2]
    source[1::5] = -1
    kind = torch.arange(count)
    return DecodeInputs(
        tokens=torch.randint(0, 95, (count,), generator=g),
        source=source,
        target=target,
        limits=torch.full((count,), steps),
        seed=torch.randint(0, 1 << 62, (count,), generator=g),
        choice=torch.randint(0, 9, (count,), generator=g),
        draw=torch.randint(0, 1000, (count,), generator=g),
        temperature=torch.where(kind % 4 == 0, 0.0, 0.5 + torch.rand(count, generator=g)),
        top_p=torch.where(kind % 3 == 0, 0.9, 1.0),
        min_p=torch.where(kind % 5 == 0, 0.05, 0.0),
        penalty=torch.where(kind % 7 == 0, 1.3, 1.0),
        top_k=torch.where(kind % 6 == 0, 20, 0).int(),
        window=torch.randint(-1, 95, (count, WINDOW), generator=g),
    )


def bursts(
    model: Model, states: torch.Tensor, max_streams: int, eager: bool = False
) -> GraphedDecode:
    decoder = model.network.decoder(states)
    assert decoder is not None
    return GraphedDecode(
        decoder.step, states.device, max_streams, 16, Eager(states.device) if eager else None
    )


def fresh_states(model: Model) -> torch.Tensor:
    states = torch.randn(
        ROWS, model.network.layout.width, generator=torch.Generator().manual_seed(0)
    )
    return states.to(model.network.device)


@pytest.mark.parametrize("count", [1, 3, 64, 150])
def test_a_replay_equals_the_same_steps_without_a_graph(model: Model, count: int) -> None:
    if model.network.device.type == "cpu":
        count = min(count, 3)
    steps = 13 if model.network.device.type == "cuda" else 2
    streams = some_streams(count, steps)
    results = []
    for eager in (True, False):
        states = fresh_states(model)
        runs = bursts(model, states, count, eager)
        states.copy_(fresh_states(model))
        results.append((runs.run(streams, steps), states))
    assert torch.equal(results[0][0], results[1][0])
    assert_same(results[0][1], results[1][1])


def test_a_stream_alone_gets_the_text_that_it_gets_in_company(model: Model) -> None:
    cuda = model.network.device.type == "cuda"
    count, steps = (150, 16) if cuda else (3, 2)
    streams = some_streams(count, steps)
    states = fresh_states(model)
    together = bursts(model, states, count)
    alone = bursts(model, states, 1)
    states.copy_(fresh_states(model))
    expected = together.run(streams, steps)
    expected_states = states.clone()
    for i, one in enumerate(streams.split(1)):
        if i % 10 in (0, 1, 2):
            states.copy_(fresh_states(model))
            assert torch.equal(alone.run(one, steps)[:, 0], expected[:, i])
            assert_same(states[one.target], expected_states[one.target])


def test_a_stream_past_its_limit_writes_no_state_and_keeps_its_place(model: Model) -> None:
    """Two bursts with limits equal one long burst of each stream."""
    count, steps = 3, 2
    streams = replace(some_streams(count, 2 * steps), limits=torch.tensor([2, 1, 0]))
    states = fresh_states(model)
    runs = bursts(model, states, count)
    states.copy_(fresh_states(model))
    together = runs.run(replace(streams, limits=torch.full((count,), 2 * steps)), 2 * steps)
    expected = states[streams.target].clone()
    states.copy_(fresh_states(model))
    runs.load(streams)
    rest = 2 * steps - streams.limits
    first = runs.launch(streams.source, streams.target, streams.limits, steps)
    source = torch.where(streams.limits > 0, streams.target, streams.source)
    second = runs.launch(source, streams.target, rest, 2 * steps)
    picked, then = first.tokens(), second.tokens()
    for i, limit in enumerate(streams.limits.tolist()):
        text = torch.cat((picked[:limit, i], then[: 2 * steps - limit, i]))
        assert torch.equal(text, together[:, i])
    assert_same(states[streams.target], expected)


def test_empty_slots_write_no_state(model: Model) -> None:
    states = fresh_states(model)
    decoder = model.network.decoder(states)
    assert decoder is not None
    decoder.step(Slots(4, 1, states.device))
    assert_same(states, fresh_states(model))
