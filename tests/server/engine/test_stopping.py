"""An engine that stops: jobs are finished or refused, and none comes in."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.job import (
    JobKind,
    Sampling,
    SequenceInput,
)
from sruserve.server.errors import (
    Draining,
)
from tests.server.engine.driver import Driver
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
