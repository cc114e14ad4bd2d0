"""An engine that stops: jobs are finished or refused, and none comes in."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sruserve.kernels import captures
from sruserve.model.network import Network
from sruserve.server.engine import engine as module
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.model_runner import ModelRunner
from sruserve.server.engine.scheduling.step_time import StepTime
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.state_cache.copy_stream import copy_stream_for
from sruserve.server.engine.state_manager import StateManager
from sruserve.server.errors import (
    Draining,
    EngineFailure,
)
from tests.cuda_stand_in import GPU, StandInCuda
from tests.server.engine.driver import Driver
from tests.server.engine.graph_stand_in import on_graphs
from tests.server.engine.long_text import TEXT
from tests.support import random_model


def test_a_stopping_engine_finishes_its_work_and_takes_no_more(tmp_path: Path) -> None:
    async def run() -> None:
        with Driver(random_model(tmp_path / "lm")) as driver:
            running = asyncio.create_task(driver.generate("Hello", 300))
            endless = driver.job(
                JobKind.GENERATE,
                [SequenceInput(driver.ids("Hi"))],
                sampling=Sampling(max_tokens=10**7),
            )
            await driver.until(lambda: driver.engine.running == 2)
            driver.engine.drain(3600)
            assert len((await running).text) == 300
            await asyncio.to_thread(driver.engine.stop, 0)  # the time of the drain is over
            with pytest.raises(Draining):
                await endless.results()
            with pytest.raises(Draining):
                await driver.generate("Hello", 1)

    asyncio.run(run())


def test_a_stop_in_the_middle_of_a_long_input_ends_its_job(tmp_path: Path) -> None:
    async def run() -> None:
        with Driver(random_model(tmp_path / "lm"), EngineConfig(max_batch_tokens=64)) as driver:
            items = [SequenceInput(driver.ids(TEXT * 90))] * 3
            jobs = [driver.job(JobKind.SCORE, items) for _ in range(3)]
            await driver.until(lambda: driver.engine.running > 0)
            await asyncio.to_thread(driver.engine.stop, 0.0)
            for submission in jobs:
                with pytest.raises(Draining):
                    await submission.results()
            assert (driver.engine.rows, driver.engine.waiting) == (0, 0)
            assert driver.engine.alive

    asyncio.run(run())


def test_jobs_that_are_submitted_while_the_engine_stops_all_get_an_outcome(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        with Driver(random_model(tmp_path / "lm")) as driver:
            stopping = asyncio.create_task(asyncio.to_thread(driver.engine.stop, 1.0))
            outcomes = []
            while not stopping.done():
                with contextlib.suppress(Draining):
                    outcomes.append(driver.job(JobKind.SCORE, [SequenceInput(driver.ids("Hello"))]))
                await asyncio.sleep(0)
            for submission in outcomes:
                with contextlib.suppress(Draining):
                    await submission.results()

    asyncio.run(run())


class OnGpu:
    """A network that says it is on a GPU."""

    device = GPU

    def __init__(self, network: Any) -> None:
        self._network = network

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


@pytest.fixture
def launching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Driver, StandInCuda]:
    """An engine whose steps are launches on a GPU, not started."""
    monkeypatch.setattr(captures, "_capture_streams", {})
    cuda, driver = StandInCuda(monkeypatch), Driver(random_model(tmp_path / "lm"))
    hidden = Network.hidden

    def launch(*arguments: Any, **options: Any) -> torch.Tensor:
        cuda.launch("a step")
        return hidden(*arguments, **options)

    monkeypatch.setattr(Network, "hidden", launch)
    driver.engine.model = replace(driver.model, network=OnGpu(driver.model.network))
    driver.engine._device = driver.engine.model.network.device
    return driver, cuda


def test_an_engine_ends_when_its_device_has_nothing_left_to_do(
    launching: tuple[Driver, StandInCuda],
) -> None:
    driver, cuda = launching
    with driver:
        asyncio.run(driver.score("Hello"))
        assert "a step" in cuda.running
    assert driver.engine.ended
    assert not cuda.running


def test_so_does_an_engine_that_does_not_get_warm(
    launching: tuple[Driver, StandInCuda], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, cuda = launching

    def fail(*_: Any) -> None:
        cuda.launch("a capture's first run")
        raise RuntimeError("out of registers")

    monkeypatch.setattr(ModelRunner, "warm_up", fail)
    with pytest.raises(EngineFailure, match="out of registers"), driver:
        pytest.fail("it was started")
    assert not cuda.running


@pytest.mark.parametrize(
    ("on_gpu", "step_seconds", "steps"),
    [
        pytest.param(True, 0.0, 64, id="on-a-GPU"),
        pytest.param(True, 1e-3, 12, id="on-a-slow-GPU"),
        pytest.param(True, 1.0, 1, id="on-one-whose-steps-take-long"),
        pytest.param(False, 1e-3, 16, id="on-a-CPU"),
    ],
)
def test_a_burst_is_as_long_as_its_device_and_the_learned_time_of_a_step_allow(
    on_gpu: bool, step_seconds: float, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, launched = random_model(tmp_path / "lm"), list[int]()
    launch = ModelRunner.launch

    def noted(runner: ModelRunner, sequences: Any, steps: int, *rest: Any) -> Any:
        launched.append(steps)
        return launch(runner, sequences, steps, *rest)

    monkeypatch.setattr(ModelRunner, "launch", noted)
    monkeypatch.setattr(StepTime, "seconds", lambda *_: step_seconds)
    monkeypatch.setattr(captures, "_capture_streams", {})
    StandInCuda(monkeypatch)
    # Its tensors are on the CPU, where the stand-in for graphs computes.
    cpu = torch.device("cpu")
    monkeypatch.setattr(module, "ModelRunner", lambda _, *rest: ModelRunner(model, *rest))
    monkeypatch.setattr(
        module,
        "StateManager",
        lambda layout, limits, _, copies: StateManager(layout, limits, cpu, copies),
    )
    served = replace(model, network=OnGpu(model.network)) if on_gpu else model
    with on_graphs(model), Driver(served, copy_stream=copy_stream_for(cpu)) as driver:
        asyncio.run(driver.generate("Hello", 100))
    assert set(launched[:-1]) == {steps}
