"""Several tokens in one step, and what ends a burst."""

import asyncio
import threading
from pathlib import Path

import pytest

from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.constraint import Constraint
from sruserve.server.engine.constrained.state import ConstraintState
from sruserve.server.engine.results import Generated
from sruserve.server.engine.scheduling.scheduler import Scheduler
from tests.server.engine.driver import Driver
from tests.support import random_model


def test_all_of_a_completion_arrives_in_whole_bursts(tmp_path: Path) -> None:
    async def run(driver: Driver) -> None:
        await driver.generate("To be", 1 + 10 * 16)

    with Driver(random_model(tmp_path / "lm"), EngineConfig(burst=16)) as driver:
        asyncio.run(run(driver))
        assert driver.counts.calls["step"] == 1 + 10


@pytest.fixture
def may_begin(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set it to let grammars begin."""
    event = threading.Event()
    monkeypatch.setattr(ConstraintState, "ready", lambda *_: event.is_set())
    return event


async def constrained(driver: Driver) -> "asyncio.Task[Generated]":
    """A completion with a grammar, which the engine has accepted."""
    constraint = Constraint.regex("[a-z]{9}", ByteVocabulary.of(driver.model.codec))
    task = asyncio.create_task(driver.generate("a", 9, constraint=constraint))
    while not driver.engine.running:
        await asyncio.sleep(0.001)
    return task


def test_a_grammar_that_begins_cuts_no_burst_of_others(
    tmp_path: Path, may_begin: threading.Event
) -> None:
    async def run(driver: Driver) -> None:
        other = await constrained(driver)
        await driver.generate("To be", 1 + 10 * 16)
        assert driver.counts.calls["step"] == 1 + 10
        may_begin.set()
        await other

    with Driver(random_model(tmp_path / "lm"), EngineConfig(burst=16)) as driver:
        asyncio.run(run(driver))


def test_a_grammar_that_is_ready_ends_the_burst_of_others(
    tmp_path: Path, may_begin: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(driver: Driver) -> None:
        other, looked = await constrained(driver), threading.Event()
        with monkeypatch.context() as patch:
            patch.setattr(Scheduler, "_enqueue_if_begun", lambda *_: looked.set())
            await driver.until(looked.is_set)  # and no look from before goes on
            assert not driver.engine._scheduler.has_waiting
            may_begin.set()
            assert driver.engine._scheduler.has_waiting
        await other
        assert not driver.engine._scheduler.has_waiting

    with Driver(random_model(tmp_path / "lm"), EngineConfig(burst=16)) as driver:
        asyncio.run(run(driver))
