"""Short jobs that are alone: their event loop answers them, never beside the engine's thread."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sruserve.model.folder import Model
from sruserve.model.network import Network
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Classified
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.engine.state_cache.cache import CachedState
from sruserve.server.errors import EngineFailure, Overloaded
from tests.server.engine.driver import Driver, Submission
from tests.server.engine.thousands import CLASSIFIER
from tests.support import random_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return random_model(tmp_path_factory.mktemp("classifier") / "m", **CLASSIFIER)


@pytest.fixture
def driver(model: Model) -> Iterator[Driver]:
    with Driver(model) as driver:
        yield driver
        assert driver.engine.rows == 0, "a row leaked"


def ask(driver: Driver, start: Snapshot | None = None, **fields: Any) -> Submission:
    item = SequenceInput(np.arange(7) % 50, start)
    usual = {"alone": True, "state_output": StateOutput.COPY}
    return driver.job(JobKind.CLASSIFY, [item], **(usual | fields))


async def ask_here(driver: Driver, start: Snapshot | None = None, **fields: Any) -> Submission:
    """Submit a job once the engine's thread waits: it is done when `submit` returns."""
    await driver.until(lambda: driver.engine._admission_queue._turn.locked() is False)
    submission = ask(driver, start, **fields)
    assert submission.job.done.done()
    return submission


def only(submission: Submission) -> Classified:
    (result,) = submission.by_item[0]
    assert isinstance(result, Classified)
    return result


def probabilities(submission: Submission) -> list[float]:
    values = only(submission).probabilities
    assert values is not None
    return list(values)


@pytest.mark.parametrize("state_output", list(StateOutput))
def test_the_engines_thread_gives_the_same_bits(driver: Driver, state_output: StateOutput) -> None:
    async def run() -> None:
        here = await ask_here(driver, state_output=state_output)
        queued = ask(driver, alone=False, state_output=state_output)
        assert not queued.job.done.done()
        await queued.results()
        assert probabilities(here) == probabilities(queued)
        for result in (only(here), only(queued)):
            if result.state is not None and isinstance(result.state.row, CachedState):
                driver.engine.drop(result.state.row)
        await driver.until(lambda: driver.engine.rows == 0)

    asyncio.run(run())


def test_a_stream_continues_here_and_on_the_thread(driver: Driver) -> None:
    async def run() -> None:
        state = None
        for alone in (True, False, True, True):
            submission = ask(driver, state, state_output=StateOutput.CACHED, alone=alone)
            await submission.results()
            if state is not None:
                driver.engine.drop(state.row)  # type: ignore[arg-type]
            state = only(submission).state
            assert state is not None
        whole = await driver.classify([*range(7)] * 4)
        assert whole.probabilities is not None
        assert probabilities(submission) == list(whole.probabilities)
        assert state is not None
        driver.engine.drop(state.row)  # type: ignore[arg-type]
        await driver.until(lambda: driver.engine.rows == 0)

    asyncio.run(run())


@pytest.mark.parametrize("state_output", [StateOutput.NONE, StateOutput.COPY])
def test_the_thread_does_not_wake_for_ever_after_its_jobs(
    driver: Driver, state_output: StateOutput
) -> None:
    async def run() -> None:
        for _ in range(3):
            await ask(driver, alone=False, state_output=state_output).results()
        engine = driver.engine
        await driver.until(lambda: not (engine._has_news or engine._polls))

    asyncio.run(run())


def test_what_is_held_is_reported_although_the_thread_had_nothing_to_do(driver: Driver) -> None:
    async def run() -> None:
        state = only(await ask_here(driver, state_output=StateOutput.CACHED)).state
        assert state is not None
        await driver.until(lambda: driver.counts.tiers["pool"][0] == 1)
        driver.engine.drop(state.row)  # type: ignore[arg-type]
        await driver.until(lambda: driver.counts.tiers["pool"][0] == 0)

    asyncio.run(run())


def test_a_job_waits_for_a_step_of_the_thread(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    hidden = Network.hidden

    def slow(*arguments: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return hidden(*arguments)

    async def run() -> None:
        monkeypatch.setattr(Network, "hidden", slow)
        first = ask(driver, alone=False)
        assert begun.wait(60)
        second = ask(driver)
        assert not second.job.done.done()
        go_on.set()
        await first.results()
        await second.results()
        assert driver.counts.calls["step"] == 2

    asyncio.run(run())


def test_a_job_whose_step_takes_long_is_left_to_the_thread(driver: Driver) -> None:
    async def run() -> None:
        driver.engine._scheduler.record_step(1, 0, 1, 0.01)
        submission = ask(driver)
        assert not submission.job.done.done()
        await submission.results()

    asyncio.run(run())


def test_a_step_that_fails_here_ends_its_job_alone(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("broken")

    async def run() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Network, "hidden", broken)
            with pytest.raises(EngineFailure):
                await (await ask_here(driver)).results()
        await (await ask_here(driver)).results()
        await ask(driver, alone=False).results()

    asyncio.run(run())


def test_a_job_that_is_refused_changes_nothing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise Overloaded("full")

    async def run() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(driver.engine._admission_queue, "_admit", refuse)
            with pytest.raises(Overloaded):
                await ask_here(driver)
        await (await ask_here(driver)).results()
        assert driver.engine.waiting == 0

    asyncio.run(run())
