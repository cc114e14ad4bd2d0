"""Short jobs: their event loop answers those of a turn in one step, if the thread waits."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

from sruserve.model.folder import Model
from sruserve.model.network import Network
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job import Classified, SequenceInput, Snapshot, StateOutput
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.state_cache.cache import CachedState
from sruserve.server.errors import EngineFailure, Overloaded
from tests.server.engine.driver import Driver, Submission
from tests.server.engine.thousands import CLASSIFIER
from tests.support import random_model

SHORT = 1000.0  # seconds: whatever the machine does meanwhile, a step takes less


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return random_model(tmp_path_factory.mktemp("classifier") / "m", **CLASSIFIER)


@pytest.fixture
def driver(model: Model) -> Iterator[Driver]:
    driver = Driver(model, gathers=True)
    driver.engine.report_seconds = 0.0  # so that the thread does not wake to report
    driver.engine.short_seconds = SHORT
    with driver:
        yield driver
        assert driver.engine.rows == 0, "a row leaked"


def ask(driver: Driver, start: Snapshot | None = None, **fields: Any) -> Submission:
    item = SequenceInput(np.arange(7) % 50, start)
    usual = {"state_output": StateOutput.COPY}
    return driver.job(JobKind.CLASSIFY, [item], **(usual | fields))


async def until_idle(driver: Driver) -> None:
    """Wait until the engine's thread waits, and does not wake to report."""
    engine = driver.engine
    await driver.until(lambda: engine._admission_queue.lends_turn and not engine._polls)


async def ask_here(driver: Driver, start: Snapshot | None = None, **fields: Any) -> Submission:
    """Submit a job once the engine's thread waits: it is done in the next turn of the loop."""
    await until_idle(driver)
    submission = ask(driver, start, **fields)
    assert not submission.job.done.done()
    await asyncio.sleep(0)
    assert submission.job.done.done()
    return submission


@contextmanager
def queued(driver: Driver) -> Iterator[None]:
    """All jobs of the block are the engine's thread's."""
    driver.engine.short_seconds = 0
    yield
    driver.engine.short_seconds = SHORT


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads of all steps."""
    seen: list[threading.Thread] = []
    hidden = Network.hidden

    def see(*arguments: Any) -> Any:
        seen.append(threading.current_thread())
        return hidden(*arguments)

    monkeypatch.setattr(Network, "hidden", see)
    return seen


def only(submission: Submission) -> Classified:
    (result,) = submission.by_item[0]
    assert isinstance(result, Classified)
    return result


def probabilities(submission: Submission) -> list[float]:
    values = only(submission).probabilities
    assert values is not None
    return list(values)


@pytest.mark.parametrize("state_output", list(StateOutput))
def test_the_engines_thread_gives_the_same_bits(
    driver: Driver, threads: list[threading.Thread], state_output: StateOutput
) -> None:
    async def run() -> None:
        here = await ask_here(driver, state_output=state_output)
        with queued(driver):
            there = ask(driver, state_output=state_output)
        await there.results()
        assert threads == [threading.current_thread(), driver.engine._thread]
        assert probabilities(here) == probabilities(there)
        for result in (only(here), only(there)):
            if result.state is not None and isinstance(result.state.row, CachedState):
                driver.engine.drop(result.state.row)
        await driver.until(lambda: driver.engine.rows == 0)

    asyncio.run(run())


def test_a_stream_continues_here_and_on_the_thread(driver: Driver) -> None:
    async def run() -> None:
        state = None
        for here in (True, False, True, True):
            with nullcontext() if here else queued(driver):
                submission = ask(driver, state, state_output=StateOutput.CACHED)
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


def test_what_is_held_is_reported_although_the_thread_had_nothing_to_do(driver: Driver) -> None:
    async def run() -> None:
        driver.engine.report_seconds = Engine.report_seconds
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
        with queued(driver):
            first = ask(driver)
        assert begun.wait(60)
        second = ask(driver)
        assert not second.job.done.done()
        go_on.set()
        await first.results()
        await second.results()
        assert driver.counts.calls["step"] == 2

    asyncio.run(run())


def test_a_job_whose_step_takes_long_is_left_to_the_thread(
    driver: Driver, threads: list[threading.Thread]
) -> None:
    async def run() -> None:
        driver.engine._scheduler.record_step(1, 0, 1, SHORT)
        await ask(driver).results()
        assert threads == [driver.engine._thread]

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
        with queued(driver):
            await ask(driver).results()

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


@pytest.mark.parametrize("state_output", [StateOutput.NONE, StateOutput.COPY])
def test_the_jobs_of_a_turn_share_a_step(driver: Driver, state_output: StateOutput) -> None:
    async def run() -> None:
        one = await ask_here(driver, state_output=state_output)
        submissions = [ask(driver, state_output=state_output) for _ in range(8)]
        for submission in submissions:
            await submission.results()
            assert probabilities(submission) == probabilities(one)
        assert driver.counts.sequences == [1, 8]

    asyncio.run(run())


def test_jobs_that_take_long_together_are_left_to_the_thread(
    driver: Driver, threads: list[threading.Thread]
) -> None:
    async def run() -> None:
        await until_idle(driver)
        # Each takes less than to wake a thread, but not eight of them.
        driver.engine._scheduler.record_step(1, 0, 1, SHORT / 10)
        driver.engine._scheduler.record_step(700, 0, 700, 70 * SHORT)
        for submission in [ask(driver) for _ in range(8)]:
            await submission.results()
        assert driver.counts.sequences == [8]
        assert threads == [driver.engine._thread]

    asyncio.run(run())


def test_a_cached_state_is_freed_after_the_jobs_that_begin_from_it(driver: Driver) -> None:
    async def run() -> None:
        state = only(await ask_here(driver, state_output=StateOutput.CACHED)).state
        assert state is not None
        expected = await ask_here(driver, state)
        await until_idle(driver)
        submission = ask(driver, state)
        driver.engine.drop(state.row)  # type: ignore[arg-type]
        await submission.results()
        assert probabilities(submission) == probabilities(expected)
        await driver.until(lambda: driver.engine.rows == 0)

    asyncio.run(run())


def test_a_job_whose_client_has_left_ends_with_nothing_computed(
    driver: Driver, threads: list[threading.Thread]
) -> None:
    async def run() -> None:
        await until_idle(driver)
        submission = ask(driver)
        submission.job.done.cancel()
        await driver.until(lambda: driver.engine.waiting == 0)
        assert threads == []

    asyncio.run(run())


def test_a_job_that_waits_when_the_engine_drains_is_answered(driver: Driver) -> None:
    async def run() -> None:
        await until_idle(driver)
        submission = ask(driver)
        driver.engine.drain(60)
        await submission.results()
        assert only(submission).probabilities is not None

    asyncio.run(run())
