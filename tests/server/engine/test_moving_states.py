"""States come and go while the steps go on: nobody waits, nobody is mixed up, nothing leaks."""

import asyncio
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from sruserve.model.folder import Model
from sruserve.server.engine.jobs import Generated, Item, Keep, Kind, Sampling, Snapshot
from sruserve.server.engine.lanes import Mark
from sruserve.server.engine.limits import Limits
from sruserve.server.errors import EngineFailure
from tests.server.engine.driver import Driver, Told, same_state
from tests.server.engine.hand_lane import HandLane
from tests.support import random_model

TEXT = "It was the best of times, it was the worst of times. " * 10


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return random_model(tmp_path_factory.mktemp("lm") / "lm")


@pytest.fixture
def lane() -> HandLane:
    return HandLane(-1)


@pytest.fixture
def lm(model: Model, lane: HandLane) -> Iterator[Driver]:
    limits = Limits(max_batch_tokens=64, state_pool_bytes=6 * model.network.layout.nbytes)
    with Driver(model, limits, lane) as driver:
        yield driver
        lane.allowed = -1
    moves = driver.engine._states.moves
    assert driver.engine.rows == 0, "a row leaked"
    assert not moves.busy
    assert len(moves._staging) == 0, "staging memory leaked"


async def decoding(driver: Driver) -> Told:
    """A completion that goes on and on."""
    sampling = Sampling(max_tokens=10**6)
    told = driver.job(Kind.GENERATE, [Item(driver.ids("Hi"))], sampling=sampling, stream=True)
    await driver.until(lambda: len(told.by_item[0]) > 0)
    return told


async def goes_on(driver: Driver, told: Told) -> None:
    before = len(told.by_item[0])
    await driver.until(lambda: len(told.by_item[0]) > before + 2)


def submit(driver: Driver, start: Snapshot | None, keep: Keep = Keep.NOTHING) -> Told:
    return driver.job(Kind.SCORE, [Item(driver.ids(TEXT), start)], keep=keep)


def test_a_decode_goes_on_while_a_state_arrives_and_its_stream_joins_later(
    lm: Driver, lane: HandLane
) -> None:
    async def run() -> None:
        start = (await lm.score(TEXT)).state
        expected = await lm.score(TEXT, start)
        lane.joined, lane.allowed = 0, len(lane.copies)
        running = await decoding(lm)
        waiting = submit(lm, start)
        await goes_on(lm, running)
        assert not waiting.by_item
        lane.allowed = -1
        (result,) = (await waiting.results())[0]
        assert result.log_likelihood == expected.log_likelihood  # type: ignore[union-attr]
        assert lane.joined == 0, "a step was made to wait"
        running.job.done.cancel()

    asyncio.run(run())


def test_where_nothing_else_can_run_the_device_waits_and_not_the_host(
    lm: Driver, lane: HandLane
) -> None:
    async def run() -> None:
        start = (await lm.score(TEXT)).state
        expected = await lm.score(TEXT, start)
        lane.joined, lane.allowed = 0, len(lane.copies)
        (result,) = (await submit(lm, start).results())[0]
        assert result.log_likelihood == expected.log_likelihood  # type: ignore[union-attr]
        assert lane.joined == 1

    asyncio.run(run())


def test_a_decode_goes_on_while_a_state_leaves_and_its_row_is_not_written_to(
    lm: Driver, lane: HandLane
) -> None:
    async def run() -> None:
        expected = await lm.score(TEXT)
        lane.allowed = len(lane.copies)
        leaving = submit(lm, None, Keep.SNAPSHOT)
        running = await decoding(lm)
        for _ in range(9):  # these take every row that is free
            await asyncio.gather(*(lm.score(TEXT[9:], keep=Keep.NOTHING) for _ in range(3)))
        await goes_on(lm, running)
        assert not leaving.by_item
        lane.allowed = -1
        (result,) = (await leaving.results())[0]
        assert same_state(result.state, expected.state)
        running.job.done.cancel()

    asyncio.run(run())


def test_a_streams_last_result_comes_after_its_earlier_text(lm: Driver, lane: HandLane) -> None:
    async def run() -> None:
        whole = await lm.generate("To be", 600)
        lane.allowed = len(lane.copies)
        sampling = Sampling(max_tokens=600)
        item = Item(lm.ids("To be"), seed=7)
        told = lm.job(Kind.GENERATE, [item], sampling=sampling, stream=True, keep=Keep.SNAPSHOT)
        await lm.until(lambda: len(lane.copies) > lane.allowed)
        running = await decoding(lm)
        parts = told.by_item[0]
        assert parts
        assert all(isinstance(p, Generated) and p.finish_reason is None for p in parts)
        lane.allowed = -1
        await told.results()
        assert "".join(p.text for p in parts if isinstance(p, Generated)) == whole.text
        assert same_state(parts[-1].state, whole.state)
        running.job.done.cancel()

    asyncio.run(run())


@pytest.mark.parametrize("keep", [Keep.NOTHING, Keep.SNAPSHOT])
def test_a_client_that_leaves_while_its_state_moves_leaks_nothing(
    lm: Driver, lane: HandLane, keep: Keep
) -> None:
    async def run() -> None:
        start = (await lm.score(TEXT)).state
        expected = await lm.score(TEXT, start)
        running = await decoding(lm)
        lane.allowed = len(lane.copies)
        gone = submit(lm, start if keep is Keep.NOTHING else None, keep)
        await lm.until(lambda: len(lane.copies) > lane.allowed)
        gone.job.done.cancel()
        await goes_on(lm, running)
        held = lm.engine.rows
        for _ in range(5):  # what is written to these rows must not reach others later
            again = await lm.score(TEXT, keep=Keep.NOTHING)
            assert again.tokens
        assert lm.engine.rows >= held - 1
        lane.allowed = -1
        running.job.done.cancel()
        await lm.until(lambda: lm.engine.rows == 0)
        assert (await lm.score(TEXT, start)).log_likelihood == expected.log_likelihood

    asyncio.run(run())


@pytest.mark.parametrize("way", ["in", "out"])
@pytest.mark.parametrize("when", ["refuse", "spoil"])
def test_a_move_that_fails_fails_its_job_alone(
    lm: Driver, lane: HandLane, when: str, way: str
) -> None:
    async def run() -> None:
        start = (await lm.score(TEXT)).state
        expected = await lm.score(TEXT, start)
        running = await decoding(lm)
        setattr(lane, when, RuntimeError("a broken bus"))
        failing = submit(lm, start) if way == "in" else submit(lm, None, Keep.SNAPSHOT)
        with pytest.raises(EngineFailure):
            await failing.results()
        await goes_on(lm, running)
        assert (await lm.score(TEXT, start)).log_likelihood == expected.log_likelihood
        running.job.done.cancel()

    asyncio.run(run())


def test_a_job_whose_second_state_fails_leaves_nobody_waiting_for_its_first(model: Model) -> None:
    lane = HandLane()
    lane.refuse, lane.spared = RuntimeError("a broken bus"), 1
    limits = Limits(max_batch_tokens=64, state_pool_bytes=6 * model.network.layout.nbytes)

    async def run() -> None:
        driver = Driver(model, limits, lane)
        driver.engine._states.moves.most = 1  # each state by itself
        item = Item(driver.ids(TEXT), Snapshot(driver.zero_row()))
        failing = driver.job(Kind.SCORE, [item, item])
        other = driver.job(Kind.SCORE, [item])
        with driver:  # all three begin in the first step
            with pytest.raises(EngineFailure, match="a state could not be moved"):
                await failing.results()
            assert await other.results()

    asyncio.run(run())


def test_a_state_of_the_wrong_size_fails_its_job_alone(lm: Driver) -> None:
    async def run() -> None:
        good = asyncio.create_task(lm.score(TEXT))
        bad = submit(lm, Snapshot(np.ones(1, np.float32)))
        with pytest.raises(EngineFailure):
            await bad.results()
        assert (await good).tokens

    asyncio.run(run())


def test_more_states_than_rows_and_staging_come_and_go_in_turns(lm: Driver, lane: HandLane) -> None:
    async def run() -> None:
        first = await asyncio.gather(*(lm.score(TEXT[i:]) for i in range(30)))
        alone = [await lm.score(TEXT, scored.state) for scored in first]
        items = [Item(lm.ids(TEXT), scored.state) for scored in first]
        together = await lm.job(Kind.SCORE, items, keep=Keep.SNAPSHOT).results()
        for index, scored in enumerate(alone):
            assert same_state(together[index][0].state, scored.state)

    asyncio.run(run())


class SlowLane:
    """Copies that take a few milliseconds, as on a device."""

    staged = True

    def allocate(self, rows: int, width: int) -> Tensor:
        return torch.empty(rows, width)

    def run(self, copy: Callable[[], None]) -> "SlowMark":
        copy()
        return SlowMark(time.monotonic() + 0.005)

    def join(self, mark: Mark) -> None:
        pass


class SlowMark:
    def __init__(self, at: float) -> None:
        self._at = at

    def done(self) -> bool:
        return time.monotonic() >= self._at

    def wait(self) -> None:
        time.sleep(max(0.0, self._at - time.monotonic()))


def test_the_only_request_there_is_gets_its_answer_when_its_state_has_left(model: Model) -> None:
    async def run(driver: Driver) -> None:
        async with asyncio.timeout(5):  # nobody else comes to wake the engine
            first = await driver.score(TEXT)
            assert (await driver.score(TEXT, first.state)).state is not None
        assert driver.counts.tiers["pool"][0] == 0  # told, though there is nothing more to do

    with Driver(model, Limits(), SlowLane()) as driver:
        asyncio.run(run(driver))
