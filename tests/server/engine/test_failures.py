"""What fails ends its own jobs, and leaves nothing of them."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sruserve.model.network import Network
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.scheduling.scheduler import Scheduler
from sruserve.server.engine.sequence import ActiveSequence
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import (
    Draining,
    EngineFailure,
)
from tests.server.engine.driver import Driver
from tests.support import random_model


def test_a_failed_step_fails_its_jobs_and_nobody_else(
    lm: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        before = await lm.generate("Hello", 20)

        def broken(*_: Any) -> None:
            raise RuntimeError("no memory")

        with monkeypatch.context() as patch:
            patch.setattr(Network, "hidden", broken)
            with pytest.raises(EngineFailure):
                await lm.generate("Hello", 20)
        assert lm.engine.rows == 0
        assert lm.engine.waiting == 0
        after = await lm.generate("Hello", 20)
        assert after.text == before.text

    asyncio.run(run())


def test_a_failure_in_settling_ends_its_jobs_and_leaves_no_row(
    lm: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        before = await lm.generate("Hello", 40)
        settle, failures = ActiveSequence.write, iter([False, False, True])

        def broken(stream: ActiveSequence, *settlement: Any) -> Any:
            if next(failures, False):
                raise RuntimeError("no memory")
            return settle(stream, *settlement)

        with monkeypatch.context() as patch:
            patch.setattr(ActiveSequence, "write", broken)
            results = await asyncio.gather(
                *(lm.generate("Hello", 40) for _ in range(4)), return_exceptions=True
            )
        assert any(isinstance(result, EngineFailure) for result in results)
        assert (lm.engine.rows, lm.engine.waiting, lm.engine.running) == (0, 0, 0)
        assert (await lm.generate("Hello", 40)).text == before.text

    asyncio.run(run())


def test_a_model_that_does_not_run_is_reported_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(Network, "hidden", broken)
    with pytest.raises(EngineFailure, match="no memory"), Driver(random_model(tmp_path / "lm")):
        pass


def test_a_failing_scheduler_ends_what_is_here_and_the_engine_continues(
    lm: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no memory")

    async def run() -> None:
        before = await lm.generate("Hello", 20)
        with monkeypatch.context() as patch:
            patch.setattr(Scheduler, "_share", broken)
            with pytest.raises(EngineFailure):
                await lm.generate("Hello", 20)
        assert (lm.engine.rows, lm.engine.waiting) == (0, 0)
        assert (await lm.generate("Hello", 20)).text == before.text

    asyncio.run(run())


def test_a_job_that_cannot_be_prepared_fails_alone(
    lm: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        bad = SequenceInput(
            np.zeros((2, 2, 2), np.int64)[:, :0], start=Snapshot(lm.zero_row(), pending=3)
        )
        failed = lm.job(JobKind.SCORE, [bad])
        good = await lm.generate("Hello", 20)
        with pytest.raises(EngineFailure):
            await failed.results()
        assert len(good.text) == 20

    asyncio.run(run())


def test_a_device_that_is_dead_ends_its_engine_so_that_probes_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = threading.Event()

    def fault(*_: Any) -> None:
        submitted.wait(60)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    async def run(driver: Driver) -> None:
        await driver.score("It was")
        monkeypatch.setattr(Network, "hidden", fault)
        monkeypatch.setattr("sruserve.server.engine.job_engine.finish_work", lambda device: False)
        jobs = [driver.job(JobKind.SCORE, [SequenceInput(driver.ids("It was"))]) for _ in range(3)]
        submitted.set()
        outcomes = await asyncio.gather(*(job.results() for job in jobs), return_exceptions=True)
        assert all(isinstance(each, EngineFailure) for each in outcomes), outcomes
        await driver.until(lambda: not driver.engine.alive)
        with pytest.raises(Draining):
            driver.job(JobKind.SCORE, [SequenceInput(driver.ids("It was"))])

    with Driver(random_model(tmp_path / "m")) as driver:
        asyncio.run(run(driver))
