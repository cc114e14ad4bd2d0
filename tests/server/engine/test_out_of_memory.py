"""Running out of memory is a refusal of what was too large; everybody else goes on."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from sruserve.model.folder import Model
from sruserve.model.network import Network
from sruserve.server.engine import state_manager as states
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.model_runner import ModelRunner
from sruserve.server.engine.output_reader import StepResult
from sruserve.server.engine.results import Generated
from sruserve.server.engine.scheduling import scheduler
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import StateOutput
from sruserve.server.engine.state_cache.cache import StateCache
from sruserve.server.engine.state_cache.pool import StatePool
from sruserve.server.errors import OutOfDeviceMemory
from tests.server.engine.driver import Driver, same_state
from tests.server.engine.hand_copy_stream import HandCopyStream
from tests.support import random_model

TEXT = "It was the best of times, it was the worst of times. " * 4
NO_MEMORY: list[Callable[[], Exception]] = [
    lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    lambda: RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to"),
    lambda: RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    lambda: MemoryError("Unable to allocate 8.00 PiB"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return random_model(tmp_path_factory.mktemp("lm") / "lm")


def room_for(sequences: int, steps: int, error: Callable[[], Exception]) -> Callable[..., Any]:
    """`Network.hidden` on a device that has room for so many sequences and steps."""
    hidden = Network.hidden

    def narrow(network: Network, inputs: torch.Tensor, batch: Any, *more: Any) -> torch.Tensor:
        if batch.sequences > sequences or len(inputs) > steps:
            raise error()
        return hidden(network, inputs, batch, *more)

    return narrow


@pytest.mark.parametrize("error", NO_MEMORY)
def test_a_step_without_memory_is_taken_in_halves_and_changes_no_result(
    model: Model, monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception]
) -> None:
    async def run(driver: Driver) -> None:
        texts = [TEXT[i:] for i in range(9)]
        alone = [await driver.score(text) for text in texts]
        made = [await driver.generate("To be", 30, seed=i) for i in range(5)]
        monkeypatch.setattr(Network, "hidden", room_for(2, 1000, error))
        scores, texts_made = await asyncio.gather(
            asyncio.gather(*(driver.score(text) for text in texts)),
            asyncio.gather(*(driver.generate("To be", 30, seed=i) for i in range(5))),
        )
        for scored, expected in zip(scores, alone, strict=True):
            assert same_state(scored.state, expected.state)
        for actual, written in zip(texts_made, made, strict=True):
            assert actual.text == written.text
            assert same_state(actual.state, written.state)
        assert (driver.engine.rows, driver.engine.waiting, driver.engine.running) == (0, 0, 0)

    with Driver(model) as driver:
        asyncio.run(run(driver))


@pytest.mark.parametrize("error", NO_MEMORY)
def test_what_has_no_room_even_alone_is_refused_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception]
) -> None:
    async def run(driver: Driver) -> None:
        expected = await driver.generate("To be", 30)
        with monkeypatch.context() as patch:
            patch.setattr(Network, "hidden", room_for(100, 80, error))
            items = [
                SequenceInput(driver.ids(TEXT)),
                SequenceInput(driver.ids("short")),
                SequenceInput(driver.ids(TEXT)),
            ]
            large = driver.job(JobKind.SCORE, items, state_output=StateOutput.COPY)
            small = [driver.generate("To be", 30) for _ in range(3)]
            for made in await asyncio.gather(*small):
                assert same_state(made.state, expected.state)
            with pytest.raises(OutOfDeviceMemory):
                await large.results()
        assert (driver.engine.rows, driver.engine.waiting, driver.engine.running) == (0, 0, 0)
        assert (await driver.score(TEXT)).tokens

    with Driver(model) as driver:
        asyncio.run(run(driver))


@pytest.mark.parametrize("place", ["streams", "rows", "bring", "take", "keep"])
def test_no_memory_beside_the_steps_refuses_that_job_and_the_next_one_works(
    model: Model, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    async def run(driver: Driver) -> None:
        start = (await driver.score(TEXT)).state
        expected = await driver.score(TEXT, start)
        sampling = Sampling(max_tokens=10**6)
        running = driver.job(
            JobKind.GENERATE, [SequenceInput(driver.ids("Hi"))], sampling=sampling, stream=True
        )
        await driver.until(lambda: len(running.by_item[0]) > 0)
        state_output = StateOutput.COPY
        with monkeypatch.context() as patch:
            if place == "streams":
                patch.setattr(scheduler, "sequences_of", broken)
            elif place == "rows":
                patch.setattr(states.StateManager, "_assign_rows", broken)
            elif place == "keep":
                state_output = StateOutput.CACHED
                patch.setattr(StateCache, "insert", broken)
            else:
                patch.setattr(HandCopyStream, "run", broken)
            start_state = None if place == "take" else start
            failing = driver.job(
                JobKind.SCORE,
                [SequenceInput(driver.ids(TEXT), start_state)],
                state_output=state_output,
            )
            with pytest.raises(OutOfDeviceMemory):
                await failing.results()
        assert same_state((await driver.score(TEXT, start)).state, expected.state)
        before = len(running.by_item[0])
        await driver.until(lambda: len(running.by_item[0]) > before)
        running.job.done.cancel()
        await driver.until(lambda: not driver.engine.rows)
        assert driver.engine._states.cache._reserved == 0

    copy_stream = HandCopyStream(-1)
    with Driver(model, copy_stream=copy_stream) as driver:
        asyncio.run(run(driver))


def test_no_memory_for_clearing_rows_is_taken_as_no_memory_for_the_step(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire = StatePool.acquire

    def narrow(pool: StatePool, count: int) -> list[int]:
        if count > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return acquire(pool, count)

    async def run(driver: Driver) -> None:
        expected = await driver.score(TEXT)
        monkeypatch.setattr(StatePool, "acquire", narrow)
        for scored in await asyncio.gather(*(driver.score(TEXT) for _ in range(5))):
            assert same_state(scored.state, expected.state)

    with Driver(model, EngineConfig(max_batch_tokens=2048)) as driver:
        asyncio.run(run(driver))


def test_a_state_that_cannot_be_taken_back_to_a_stop_ends_its_request_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replay(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(ModelRunner, "replay", replay)

    async def run(driver: Driver) -> None:
        whole = await driver.generate("Hi", 30)
        stop = whole.text[9]
        rest = [driver.generate("Hi", 30, state_output=StateOutput.NONE) for _ in range(4)]
        stopped = driver.generate("Hi", 30, stop=(stop,))
        outcomes = await asyncio.gather(stopped, *rest, return_exceptions=True)
        assert isinstance(outcomes[0], OutOfDeviceMemory)
        for each in outcomes[1:]:
            assert isinstance(each, Generated), each
            assert each.text == whole.text
        assert driver.engine.rows == 0

    with Driver(model) as driver:
        asyncio.run(run(driver))


def test_states_that_cannot_be_taken_back_together_are_taken_back_in_parts(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay, tried, broken = ModelRunner.replay, [], -1

    def narrow(runner: ModelRunner, replays: Sequence[tuple[StepResult, int]]) -> None:
        tried.append(len(replays))
        if len(replays) > 2 or any(r.sequence.index == broken for r, _ in replays):
            raise torch.OutOfMemoryError("CUDA out of memory")
        replay(runner, replays)

    async def run(driver: Driver) -> None:
        nonlocal broken
        whole = await driver.generate("Hi", 30)
        stop = whole.text[9]
        alone = await driver.generate("Hi", 30, stop=(stop,))
        monkeypatch.setattr(ModelRunner, "replay", narrow)
        items = [SequenceInput(driver.ids("Hi"), seed=7) for _ in range(5)]
        job, other = (
            driver.job(
                JobKind.GENERATE,
                of,
                sampling=Sampling(max_tokens=30, stop=(stop,)),
                state_output=StateOutput.COPY,
            )
            for of in (items, items)
        )
        for submission in (job, other):
            for (made,) in (await submission.results()).values():
                assert isinstance(made, Generated)
                assert same_state(made.state, alone.state)
        assert max(tried) > 2
        broken = 4
        job = driver.job(
            JobKind.GENERATE,
            items,
            sampling=Sampling(max_tokens=30, stop=(stop,)),
            state_output=StateOutput.COPY,
        )
        single = driver.generate("Hi", 30, stop=(stop,))
        with pytest.raises(OutOfDeviceMemory):
            await job.results()
        assert same_state((await single).state, alone.state)
        assert driver.engine.rows == 0

    with Driver(model) as driver:
        asyncio.run(run(driver))
