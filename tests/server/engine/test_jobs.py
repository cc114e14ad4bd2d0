"""Jobs of an engine: what they hold, how they wait, and their results."""

import asyncio
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Generated
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import StateOutput
from sruserve.server.errors import (
    DeadlineExceeded,
    EmptyInput,
    InputTooLong,
    Overloaded,
)
from tests.server.engine.driver import Driver, Submission, row_of, same_state
from tests.server.engine.long_text import TEXT
from tests.server.hand_clock import HandClock
from tests.support import random_model


def test_a_completion_that_decodes_holds_neither_its_prompt_nor_its_first_state(lm: Driver) -> None:
    async def run() -> None:
        start = (await lm.generate("To be", 1)).state
        assert start is not None
        ids, row = lm.ids(", or not"), row_of(start).copy()
        began = weakref.ref(ids), weakref.ref(row)
        submission = lm.job(
            JobKind.GENERATE,
            [SequenceInput(ids, replace(start, row=row))],
            sampling=Sampling(max_tokens=10**6),
            stream=True,
        )
        del ids, row
        await lm.until(lambda: all(array() is None for array in began))
        assert not submission.job.done.done()
        submission.job.done.cancel()

    asyncio.run(run())


def test_text_is_delivered_once_and_as_it_is_generated(lm: Driver) -> None:
    async def run() -> None:
        item = SequenceInput(lm.ids("Hello"), seed=3)
        submission = lm.job(
            JobKind.GENERATE,
            [item],
            sampling=Sampling(max_tokens=1000),
            stream=True,
            state_output=StateOutput.COPY,
        )
        parts = (await submission.results())[0]
        whole = await lm.generate("Hello", 1000, seed=3)
        assert len(parts) > 3
        assert "".join(part.text for part in parts if isinstance(part, Generated)) == whole.text
        assert [getattr(part, "finish_reason", "") for part in parts[:-1]] == [None] * (
            len(parts) - 1
        )
        assert same_state(getattr(parts[-1], "state", None), whole.state)

    asyncio.run(run())


def test_a_completion_of_nothing_is_refused(lm: Driver) -> None:
    async def run() -> None:
        with pytest.raises(EmptyInput):
            await lm.generate("", 5)
        with pytest.raises(EmptyInput):
            await lm.generate("", 5, start=(await lm.score("")).state)

    asyncio.run(run())


def test_a_token_that_is_no_text_alone_is_reported_as_its_bytes(tmp_path: Path) -> None:
    model = random_model(tmp_path / "lm", vocabulary=list(range(97, 256)))

    async def run(driver: Driver) -> None:
        made = await driver.generate("abc", 5, logprobs=20, temperature=2.0)
        assert all(len(entry.top) == 20 for entry in made.logprobs)
        assert any("bytes:\\x" in token for entry in made.logprobs for token in entry.top)

    with Driver(model) as driver:
        asyncio.run(run(driver))


def test_a_withdrawn_job_stops_and_frees_its_rows(lm: Driver) -> None:
    async def run() -> None:
        item = SequenceInput(lm.ids("Hello"))
        submission = lm.job(
            JobKind.GENERATE, [item], sampling=Sampling(max_tokens=10**6), stream=True
        )
        await lm.until(lambda: bool(submission.by_item))
        row = lm.model.network.layout.nbytes
        await lm.until(lambda: lm.counts.tiers == {"pool": (1, row)})
        submission.job.done.cancel()
        await lm.until(lambda: not lm.engine.rows and not lm.engine.running)
        pieces = len(submission.by_item[0])
        await lm.until(lambda: lm.counts.tiers == {"pool": (0, 0)})
        await lm.generate("Hello", 20)
        assert len(submission.by_item[0]) == pieces

    asyncio.run(run())


def test_more_streams_than_rows_wait_their_turn(tmp_path: Path) -> None:
    model = random_model(tmp_path / "lm")
    limits = EngineConfig(state_pool_bytes=7 * model.network.layout.nbytes)

    async def run(driver: Driver) -> None:
        alone = await driver.generate("Hello", 40)
        results = await asyncio.gather(*(driver.generate("Hello", 40) for _ in range(20)))
        assert {result.text for result in results} == {alone.text}
        assert driver.engine.rows == 0

    with Driver(model, limits) as driver:
        asyncio.run(run(driver))


def test_long_inputs_do_not_stall_decodes(tmp_path: Path) -> None:
    model = random_model(tmp_path / "lm")

    async def run(driver: Driver) -> None:
        submission = driver.job(
            JobKind.GENERATE,
            [SequenceInput(driver.ids("Hi"))],
            sampling=Sampling(max_tokens=10**6),
            stream=True,
        )
        await driver.until(lambda: bool(submission.by_item))
        driver.counts.tokens.clear()
        await driver.score(TEXT)
        assert max(driver.counts.tokens) <= 512 // 8 + 16
        assert not submission.job.done.done()
        submission.job.done.cancel()

    with Driver(model, EngineConfig(max_batch_tokens=512)) as driver:
        asyncio.run(run(driver))


def test_a_full_queue_refuses_at_once_and_continues(tmp_path: Path) -> None:
    model = random_model(tmp_path / "lm")

    async def run(*sizes: int) -> None:
        """The last job finds the queue full; the others wait for the engine's start."""
        driver = Driver(model, EngineConfig(max_queue_requests=3, max_queue_bytes=100))
        items = [SequenceInput(driver.ids(TEXT))] * 10
        jobs = [driver.job(JobKind.SCORE, items, input_bytes=size) for size in sizes[:-1]]
        with pytest.raises(Overloaded):
            driver.job(JobKind.SCORE, items, input_bytes=sizes[-1])
        with driver:
            for submission in jobs:
                assert len(await submission.results()) == 10
            assert driver.engine.waiting == 0
            await driver.score("Hello")

    asyncio.run(run(10, 10, 10, 10))
    asyncio.run(run(90, 20))


def test_a_job_that_waits_past_its_deadline_is_dropped(tmp_path: Path) -> None:
    model, clock = random_model(tmp_path / "lm"), HandClock()

    def job(driver: Driver, deadline: float) -> Submission:
        inputs = [SequenceInput(driver.ids("Hello"))]
        return driver.job(JobKind.SCORE, inputs, deadline=deadline)

    async def run(driver: Driver) -> None:
        in_time, late = job(driver, clock.now), job(driver, clock.now - 0.001)
        with pytest.raises(DeadlineExceeded):
            await late.results()
        assert await in_time.results()
        assert driver.engine.waiting == 0

    with Driver(model, clock=clock) as driver:
        asyncio.run(run(driver))


def test_a_bidirectional_classifier_takes_whole_inputs_only(tmp_path: Path) -> None:
    model = random_model(tmp_path / "c", "classify", vocab_size=50, bidirectional=True)

    async def run(driver: Driver) -> None:
        results = await asyncio.gather(*(driver.classify([1, 2, 3] * n) for n in (1, 5, 16, 21)))
        assert all(result.probabilities is not None for result in results)
        with pytest.raises(InputTooLong):
            await driver.classify([1] * 65)

    with Driver(model, EngineConfig(max_batch_tokens=64)) as driver:
        asyncio.run(run(driver))


def test_a_request_without_inputs_is_refused(tmp_path: Path) -> None:
    async def run(driver: Driver) -> None:
        with pytest.raises(EmptyInput):
            driver.job(JobKind.SCORE, [])

    with Driver(random_model(tmp_path / "m")) as driver:
        asyncio.run(run(driver))
