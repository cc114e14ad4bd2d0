"""States come and go while the steps go on: nobody waits, nobody is mixed up, nothing leaks."""

import asyncio
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from sruserve.kernels.side_stream import StreamEvent
from sruserve.model.folder import Model
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Generated
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.errors import EngineFailure
from tests.server.engine.driver import Driver, Submission, same_state
from tests.server.engine.hand_copy_stream import HandCopyStream
from tests.support import random_model

TEXT = "It was the best of times, it was the worst of times. " * 10


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return random_model(tmp_path_factory.mktemp("lm") / "lm")


@pytest.fixture
def copy_stream() -> HandCopyStream:
    return HandCopyStream(-1)


@pytest.fixture
def lm(model: Model, copy_stream: HandCopyStream) -> Iterator[Driver]:
    limits = EngineConfig(max_batch_tokens=64, state_pool_bytes=6 * model.network.layout.nbytes)
    with Driver(model, limits, copy_stream) as driver:
        yield driver
        copy_stream.allowed = -1
    transfers = driver.engine._states.transfers
    assert driver.engine.rows == 0, "a row leaked"
    assert not transfers.busy
    assert len(transfers._staging) == 0, "staging memory leaked"


async def decoding(driver: Driver) -> Submission:
    """A completion that goes on and on."""
    sampling = Sampling(max_tokens=10**6)
    submission = driver.job(
        JobKind.GENERATE, [SequenceInput(driver.ids("Hi"))], sampling=sampling, stream=True
    )
    await driver.until(lambda: len(submission.by_item[0]) > 0)
    return submission


async def goes_on(driver: Driver, submission: Submission) -> None:
    before = len(submission.by_item[0])
    await driver.until(lambda: len(submission.by_item[0]) > before + 2)


def submit(
    driver: Driver, start: Snapshot | None, state_output: StateOutput = StateOutput.NONE
) -> Submission:
    return driver.job(
        JobKind.SCORE, [SequenceInput(driver.ids(TEXT), start)], state_output=state_output
    )


def test_a_decode_continues_while_a_state_arrives_and_its_stream_joins_later(
    lm: Driver, copy_stream: HandCopyStream
) -> None:
    async def run() -> None:
        start = (await lm.score(TEXT)).state
        expected = await lm.score(TEXT, start)
        copy_stream.joined, copy_stream.allowed = 0, len(copy_stream.copies)
        running = await decoding(lm)
        waiting = submit(lm, start)
        await goes_on(lm, running)
        assert not waiting.by_item
        copy_stream.allowed = -1
        (result,) = (await waiting.results())[0]
        assert result.log_likelihood == expected.log_likelihood  # type: ignore[union-attr]
        assert copy_stream.joined == 0, "a step was made to wait"
        running.job.done.cancel()

    asyncio.run(run())


def test_where_nothing_else_can_run_the_device_waits_and_not_the_host(
    lm: Driver, copy_stream: HandCopyStream
) -> None:
    async def run() -> None:
        start = (await lm.score(TEXT)).state
        expected = await lm.score(TEXT, start)
        copy_stream.joined, copy_stream.allowed = 0, len(copy_stream.copies)
        (result,) = (await submit(lm, start).results())[0]
        assert result.log_likelihood == expected.log_likelihood  # type: ignore[union-attr]
        assert copy_stream.joined == 1

    asyncio.run(run())


def test_a_decode_continues_while_a_state_leaves_and_its_row_is_not_written_to(
    lm: Driver, copy_stream: HandCopyStream
) -> None:
    async def run() -> None:
        expected = await lm.score(TEXT)
        copy_stream.allowed = len(copy_stream.copies)
        leaving = submit(lm, None, StateOutput.COPY)
        running = await decoding(lm)
        for _ in range(9):  # these take every row that is free
            await asyncio.gather(
                *(lm.score(TEXT[9:], state_output=StateOutput.NONE) for _ in range(3))
            )
        await goes_on(lm, running)
        assert not leaving.by_item
        copy_stream.allowed = -1
        (result,) = (await leaving.results())[0]
        assert same_state(result.state, expected.state)
        running.job.done.cancel()

    asyncio.run(run())


def test_a_streams_last_result_follows_its_earlier_text(
    lm: Driver, copy_stream: HandCopyStream
) -> None:
    async def run() -> None:
        whole = await lm.generate("To be", 600)
        copy_stream.allowed = len(copy_stream.copies)
        sampling = Sampling(max_tokens=600)
        item = SequenceInput(lm.ids("To be"), seed=7)
        submission = lm.job(
            JobKind.GENERATE, [item], sampling=sampling, stream=True, state_output=StateOutput.COPY
        )
        await lm.until(lambda: len(copy_stream.copies) > copy_stream.allowed)
        running = await decoding(lm)
        parts = submission.by_item[0]
        assert parts
        assert all(isinstance(p, Generated) and p.finish_reason is None for p in parts)
        copy_stream.allowed = -1
        await submission.results()
        assert "".join(p.text for p in parts if isinstance(p, Generated)) == whole.text
        assert same_state(parts[-1].state, whole.state)
        running.job.done.cancel()

    asyncio.run(run())


@pytest.mark.parametrize("state_output", [StateOutput.NONE, StateOutput.COPY])
def test_a_client_that_leaves_while_its_state_moves_leaks_nothing(
    lm: Driver, copy_stream: HandCopyStream, state_output: StateOutput
) -> None:
    async def run() -> None:
        start = (await lm.score(TEXT)).state
        expected = await lm.score(TEXT, start)
        running = await decoding(lm)
        copy_stream.allowed = len(copy_stream.copies)
        gone = submit(lm, start if state_output is StateOutput.NONE else None, state_output)
        await lm.until(lambda: len(copy_stream.copies) > copy_stream.allowed)
        gone.job.done.cancel()
        await goes_on(lm, running)
        rows_before = lm.engine.rows
        for _ in range(5):  # what is written to these rows must not reach others later
            again = await lm.score(TEXT, state_output=StateOutput.NONE)
            assert again.tokens
        assert lm.engine.rows >= rows_before - 1
        copy_stream.allowed = -1
        running.job.done.cancel()
        await lm.until(lambda: lm.engine.rows == 0)
        assert (await lm.score(TEXT, start)).log_likelihood == expected.log_likelihood

    asyncio.run(run())


@pytest.mark.parametrize("way", ["in", "out"])
@pytest.mark.parametrize("when", ["refuse", "spoil"])
def test_a_move_that_fails_fails_its_job_alone(
    lm: Driver, copy_stream: HandCopyStream, when: str, way: str
) -> None:
    async def run() -> None:
        start = (await lm.score(TEXT)).state
        expected = await lm.score(TEXT, start)
        running = await decoding(lm)
        setattr(copy_stream, when, RuntimeError("a broken bus"))
        failing = submit(lm, start) if way == "in" else submit(lm, None, StateOutput.COPY)
        with pytest.raises(EngineFailure):
            await failing.results()
        await goes_on(lm, running)
        assert (await lm.score(TEXT, start)).log_likelihood == expected.log_likelihood
        running.job.done.cancel()

    asyncio.run(run())


def test_a_job_whose_second_state_fails_leaves_nobody_waiting_for_its_first(model: Model) -> None:
    copy_stream = HandCopyStream()
    copy_stream.refuse, copy_stream.spared = RuntimeError("a broken bus"), 1
    limits = EngineConfig(max_batch_tokens=64, state_pool_bytes=6 * model.network.layout.nbytes)

    async def run() -> None:
        driver = Driver(model, limits, copy_stream)
        driver.engine._states.transfers.max_rows = 1  # each state by itself
        item = SequenceInput(driver.ids(TEXT), Snapshot(driver.zero_row()))
        failing = driver.job(JobKind.SCORE, [item, item])
        other = driver.job(JobKind.SCORE, [item])
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


def test_more_states_than_rows_and_staging_arrive_and_leave_in_turns(
    lm: Driver, copy_stream: HandCopyStream
) -> None:
    async def run() -> None:
        first = await asyncio.gather(*(lm.score(TEXT[i:]) for i in range(30)))
        alone = [await lm.score(TEXT, scored.state) for scored in first]
        items = [SequenceInput(lm.ids(TEXT), scored.state) for scored in first]
        together = await lm.job(JobKind.SCORE, items, state_output=StateOutput.COPY).results()
        for index, scored in enumerate(alone):
            assert same_state(together[index][0].state, scored.state)

    asyncio.run(run())


class SlowCopyStream:
    """Copies that take a few milliseconds, as on a device."""

    is_async = True

    def allocate(self, rows: int, width: int) -> Tensor:
        return torch.empty(rows, width)

    def run(self, work: Callable[[], object]) -> "SlowMark":
        work()
        return SlowMark(time.monotonic() + 0.005)

    def wait_event(self, event: StreamEvent) -> None:
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
        async with asyncio.timeout(60):  # nobody else comes to wake the engine
            first = await driver.score(TEXT)
            assert (await driver.score(TEXT, first.state)).state is not None
        await driver.until(lambda: driver.counts.tiers["pool"][0] == 0)  # with nothing more to do

    with Driver(model, EngineConfig(), SlowCopyStream()) as driver:
        asyncio.run(run(driver))
