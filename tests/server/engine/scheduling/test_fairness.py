"""What an engine answers first, whatever waits: counted in its steps."""

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sruserve.model.folder import Model
from sruserve.server.engine.batch import Batch
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.output_reader import StepResult
from sruserve.server.engine.result_dispatcher import _Message
from sruserve.server.engine.results import Classified, Generated
from sruserve.server.engine.scheduling.company import Company
from sruserve.server.engine.scheduling.step_time import StepTime
from sruserve.server.engine.sequence_input import SequenceInput
from tests.server.engine.driver import Driver, Submission
from tests.support import random_model

ENDLESS = Sampling(max_tokens=10**7)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return random_model(tmp_path_factory.mktemp("lm") / "lm")


class Watched(Driver):
    """An engine of which is known in which step a job came in, and in which one it ended."""

    def __enter__(self) -> "Watched":
        self.came: dict[Job, int] = {}
        self.ended: dict[Job, int] = {}
        self.tokens_by_tenant: Counter[Hashable] = Counter()  # computed, delivered or not
        settle = self.engine._settler.settle
        receive, add = self.engine._admission_queue.receive, self.engine._dispatcher._add

        def watch_receive(timeout: float | None) -> Any:
            messages = receive(timeout)
            self.came |= {m: self.counts.calls["step"] for m in messages if isinstance(m, Job)}
            return messages

        def watch_end(message: _Message) -> None:
            if message.last:
                self.ended[message.job] = self.counts.calls["step"]
            add(message)

        def watch_settle(
            batch: Batch, step_results: list[StepResult], now: float, fail: Any
        ) -> None:
            for sequence, result in zip(batch.computed.sequences, step_results, strict=True):
                self.tokens_by_tenant[sequence.job.tenant] += len(result.tokens)
            settle(batch, step_results, now, fail)

        self.engine._settler.settle = watch_settle  # type: ignore[method-assign]
        self.engine._admission_queue.receive = watch_receive  # type: ignore[method-assign]
        self.engine._dispatcher._add = watch_end  # type: ignore[method-assign]
        super().__enter__()
        return self

    async def steps(self, submission: Submission) -> int:
        """How many steps it took until a job was answered."""
        await submission.results()
        return self.ended[submission.job] - self.came[submission.job]

    def complete(self, count: int = 1, **fields: Any) -> Submission:
        """Completions that go on for ever."""
        ids = self.ids("Hi")
        return self.job(JobKind.GENERATE, [SequenceInput(ids)] * count, sampling=ENDLESS, **fields)

    def read(self, count: int, length: int, **fields: Any) -> Submission:
        return self.job(JobKind.SCORE, [SequenceInput(np.full(length, 3))] * count, **fields)

    async def until_read(self, tokens: int) -> None:
        await self.until(lambda: self.counts.calls["consumed"] >= tokens)

    async def end(self) -> None:
        """Have everything forgotten that still waits or runs."""
        for job in list(self.came):
            job.done.cancel()
        await self.until(lambda: not self.engine.running and not self.engine.rows)


@pytest.fixture
def engine(model: Model) -> Iterator[Watched]:
    with Watched(model) as driver:
        yield driver


def test_a_small_request_does_not_wait_for_a_large_one_beside_a_completion(
    engine: Watched,
) -> None:
    async def run() -> None:
        engine.complete()
        engine.read(1024, 2000)
        await engine.until_read(5000)
        assert await engine.steps(engine.read(1, 5)) <= 2
        await engine.end()

    asyncio.run(run())


def test_a_small_request_does_not_wait_for_a_hundred_large_ones(engine: Watched) -> None:
    async def run() -> None:
        for _ in range(60):
            engine.read(1024, 20)
        await engine.until_read(5000)
        assert await engine.steps(engine.read(1, 5)) <= 2
        assert await engine.steps(engine.read(1, 5, priority=0)) <= 2
        await engine.end()

    asyncio.run(run())


def test_a_small_request_does_not_wait_for_other_tenants(engine: Watched) -> None:
    async def run() -> None:
        for tenant in ("a", "b", "c"):
            for _ in range(10):
                engine.read(512, 20, tenant=tenant, priority=-1000)
        await engine.until_read(5000)
        assert await engine.steps(engine.read(1, 5, tenant="mine")) <= 2 * 4
        await engine.end()

    asyncio.run(run())


def test_a_small_request_does_not_wait_for_completions_that_fill_every_step(model: Model) -> None:
    async def run(driver: Watched) -> None:
        driver.complete(300)
        await driver.until(lambda: len(driver.engine._scheduler._decoding) == 300)
        assert await driver.steps(driver.read(1, 4)) <= 2
        await driver.end()

    with Watched(model, EngineConfig(max_batch_tokens=256)) as driver:
        asyncio.run(run(driver))


def test_a_small_request_finds_a_row_where_completions_hold_all_that_they_may(
    model: Model,
) -> None:
    async def run(driver: Watched) -> None:
        driver.complete(100)
        driver.complete(100)
        await driver.until(lambda: driver.engine._scheduler.admitted >= 30)
        assert await driver.steps(driver.read(1, 5)) <= 2
        first = driver.complete(1, stream=True, tenant="other")
        await driver.until(lambda: bool(first.by_item))
        await driver.end()

    pool = 2 * 34 * model.network.layout.nbytes
    with Watched(model, EngineConfig(state_pool_bytes=pool)) as driver:
        asyncio.run(run(driver))


def test_tenants_get_as_many_tokens_where_not_all_completions_fit_a_step(model: Model) -> None:
    async def run(driver: Watched) -> None:
        driver.complete(120, tenant="many", stream=True)
        driver.complete(20, tenant="few", stream=True)
        await driver.until(lambda: len(driver.engine._scheduler._decoding) == 140)
        tokens = driver.tokens_by_tenant
        tokens.clear()
        await driver.until(lambda: tokens["few"] > 1000)
        assert tokens["many"] == pytest.approx(tokens["few"], rel=0.5)
        await driver.end()

    with Watched(model, EngineConfig(max_batch_tokens=40)) as driver:
        asyncio.run(run(driver))


class Measured(StepTime):
    """A device that takes as long for a step as for ten rows of it, whatever the machine does."""

    row_seconds = 1e-7

    def learn(self, rows: int, tokens: int, seconds: float) -> None:
        self._own_seconds, self._row_seconds = 10 * self.row_seconds, self.row_seconds


class Slower(Measured):
    row_seconds = 1e-4


def measured(driver: Watched, device: type[Measured] = Measured) -> Watched:
    """The same engine on such a device."""
    scheduler, max_rows = driver.engine._scheduler, EngineConfig().max_batch_tokens
    scheduler._decode_time, scheduler._input_time = device(max_rows, 64), device(max_rows, 128)
    return driver


def slow(driver: Watched) -> Watched:
    """The same engine where every step takes too long."""
    scheduler, max_rows = driver.engine._scheduler, EngineConfig().max_batch_tokens
    scheduler._decode_time = StepTime(max_rows, 64, target_seconds=1e-9)
    scheduler._input_time = StepTime(max_rows, 128, target_seconds=1e-9)
    return driver


def test_a_completion_is_half_as_fast_beside_any_number_of_another_tenant(
    model: Model,
) -> None:
    async def run(driver: Watched) -> None:
        driver.complete(200, tenant="many", stream=True)
        driver.read(1024, 200, tenant="many")
        await driver.until(lambda: len(driver.engine._scheduler._decoding) == 200)
        assert max(driver.counts.sequences) >= 200  # the tenant is alone
        ids = SequenceInput(driver.ids("Hi"))
        mine = driver.job(JobKind.GENERATE, [ids], sampling=Sampling(max_tokens=100), tenant="mine")
        assert await driver.steps(mine) < 105  # it has a token in every step
        rows = driver.counts.tokens[driver.came[mine.job] + 3 : driver.ended[mine.job]]
        assert max(rows) == 12  # which takes twice as long as one of a single row
        await driver.end()

    with measured(Watched(model)) as driver:
        asyncio.run(run(driver))


def test_a_reader_is_half_as_fast_beside_any_number_of_another_tenant(
    model: Model,
) -> None:
    async def run(driver: Watched) -> None:
        driver.read(100, 10_000, tenant="many")
        await driver.until_read(10_000)
        mine = driver.read(1, 30, tenant="mine")
        assert await driver.steps(mine) <= 3
        assert min(driver.counts.tokens[-3:]) <= 2 * 30 + 10
        await driver.end()

    with measured(Watched(model)) as driver:
        asyncio.run(run(driver))


def test_a_tenant_that_only_reads_has_its_share_of_a_step_for_that(model: Model) -> None:
    async def run(driver: Watched) -> None:
        driver.complete(200, tenant="many", stream=True)
        await driver.until(lambda: driver.counts.sequences.count(200) > 1)
        mine = driver.read(1, 31, tenant="mine")
        assert await driver.steps(mine) <= 2  # one may run already
        assert 2 * 30 + 10 in driver.counts.tokens  # half of the time of that step
        driver.read(1024, 200, tenant="many")  # its inputs take an eighth, and half of the others'
        await driver.until_read(5000)
        assert await driver.steps(driver.read(1, 31, tenant="mine")) <= 3
        await driver.end()

    with measured(Watched(model)) as driver:
        asyncio.run(run(driver))


def test_a_tenant_reads_with_what_its_completions_leave_of_its_share(model: Model) -> None:
    async def run(driver: Watched) -> None:
        driver.complete(2, tenant="many", stream=True)
        for tenant in ("many", "other"):
            driver.read(1024, 200, tenant=tenant)
        mine = driver.complete(1, tenant="mine", stream=True)
        await driver.until(lambda: _token_count(mine) > 100)
        assert set(driver.counts.tokens[-20:]) == {23}  # three times the time of a row, all in use
        await driver.end()

    with measured(Watched(model)) as driver:
        asyncio.run(run(driver))


@pytest.mark.parametrize(("device", "burst"), [(Measured, 16), (Slower, 2)])
def test_completions_that_take_turns_decode_for_5_ms_in_each(
    model: Model, device: type[Measured], burst: int
) -> None:
    async def run(driver: Watched) -> None:
        driver.complete(200, tenant="many", stream=True)
        await driver.until(lambda: driver.counts.sequences.count(200) > 1)
        ids = SequenceInput(driver.ids("Hi"))
        mine = driver.job(JobKind.GENERATE, [ids], sampling=Sampling(max_tokens=97), tenant="mine")
        assert await driver.steps(mine) <= 96 // burst + 3  # its input, and a step that ran
        assert driver.counts.sequences[driver.ended[mine.job] - 1] == 12
        await driver.end()

    with measured(Watched(model), device) as driver:
        asyncio.run(run(driver))


def patient(driver: Watched) -> Watched:
    """The same engine, which expects a tenant again for an hour."""
    driver.engine._scheduler._company = Company(3600.0)
    return driver


def test_steps_of_inputs_stay_short_while_another_tenant_may_return(model: Model) -> None:
    async def run(driver: Watched) -> None:
        driver.read(100, 10_000, tenant="many")
        await driver.until(lambda: 490 in driver.counts.tokens)  # 50 ms
        mine = driver.read(1, 5, tenant="mine")
        await driver.steps(mine)
        before = driver.ended[mine.job]
        await driver.until(lambda: driver.counts.calls["step"] > before + 5)
        assert set(driver.counts.tokens[before:]) == {128}  # 13 ms
        await driver.end()

    with measured(patient(Watched(model)), Slower) as driver:
        asyncio.run(run(driver))


def test_steps_of_completions_stay_short_while_another_tenant_may_return(
    model: Model,
) -> None:
    async def run(driver: Watched) -> None:
        driver.complete(200, tenant="many", stream=True)
        await driver.until(lambda: driver.counts.sequences.count(200) > 1)
        mine = driver.read(1, 5, tenant="mine")
        await driver.steps(mine)
        before = driver.ended[mine.job]
        await driver.until(lambda: driver.counts.calls["step"] > before + 5)
        assert set(driver.counts.sequences[before:]) == {90}  # 10 ms
        await driver.end()

    with measured(patient(Watched(model)), Slower) as driver:
        asyncio.run(run(driver))


def test_on_a_slow_device_completions_take_turns_in_steps_that_stay_short(
    model: Model,
) -> None:
    async def run(driver: Watched) -> None:
        submission = [driver.complete(50, stream=True) for _ in range(4)]
        await driver.until(lambda: all(_token_count(one) > 200 for one in submission))
        before = driver.counts.calls["step"]
        await driver.until(lambda: driver.counts.calls["step"] > before + 20)
        assert max(driver.counts.sequences[before:]) <= 64
        assert await driver.steps(driver.read(1, 5)) <= 2
        await driver.end()

    with slow(Watched(model)) as driver:
        asyncio.run(run(driver))


def test_on_a_slow_device_long_inputs_are_read_in_steps_that_stay_short(
    model: Model,
) -> None:
    async def run(driver: Watched) -> None:
        driver.read(1024, 20)
        driver.read(10, 3000)
        await driver.until_read(5000)
        before = driver.counts.calls["step"]
        assert await driver.steps(driver.read(1, 5)) <= 2
        await driver.until(lambda: driver.counts.calls["step"] > before + 20)
        assert max(driver.counts.tokens[before:]) <= 256
        await driver.end()

    with slow(Watched(model)) as driver:
        asyncio.run(run(driver))


def test_on_a_slow_device_whole_inputs_are_read_in_steps_that_stay_short(tmp_path: Path) -> None:
    whole = random_model(tmp_path / "c", "classify", vocab_size=50, bidirectional=True)

    async def run(driver: Watched) -> None:
        for size in (20, 100, 300):
            driver.job(JobKind.CLASSIFY, [SequenceInput(np.full(size, 3))] * 200)
        await driver.until_read(5000)
        before = driver.counts.calls["step"]
        await driver.until(lambda: driver.counts.calls["step"] > before + 20)
        assert max(driver.counts.tokens[before:]) == 300  # one input, alone
        assert max(tokens for tokens in driver.counts.tokens[before:] if tokens != 300) <= 128
        await driver.end()

    with slow(Watched(whole)) as driver:
        asyncio.run(run(driver))


def test_a_small_whole_input_does_not_wait_for_large_ones(tmp_path: Path) -> None:
    whole = random_model(tmp_path / "c", "classify", vocab_size=50, bidirectional=True)

    async def run(driver: Watched) -> None:
        for _ in range(5):
            driver.job(JobKind.CLASSIFY, [SequenceInput(np.full(100, 3))] * 100)
        await driver.until_read(500)
        small = driver.job(JobKind.CLASSIFY, [SequenceInput(np.full(2, 3))])
        assert await driver.steps(small) <= 2
        result = small.by_item[0][0]
        assert isinstance(result, Classified)
        await driver.end()

    with Watched(whole, EngineConfig(max_batch_tokens=128)) as driver:
        asyncio.run(run(driver))


def _token_count(submission: Submission) -> int:
    parts = [part for parts in submission.by_item.values() for part in parts]
    return sum(len(part.tokens) for part in parts if isinstance(part, Generated))
