"""Running out of memory is a refusal of what was too large; everybody else goes on."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sruserve.model.folder import Model
from sruserve.model.network import Network
from sruserve.server.engine import scheduler, states
from sruserve.server.engine.jobs import Generated, Item, Keep, Kind, Sampling
from sruserve.server.engine.limits import Limits
from sruserve.server.engine.pool import StatePool
from sruserve.server.engine.residents import Residents
from sruserve.server.engine.step import Stepper
from sruserve.server.errors import OutOfDeviceMemory
from tests.server.engine.driver import Driver, same_state
from tests.server.engine.hand_lane import HandLane
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
        for found, written in zip(texts_made, made, strict=True):
            assert found.text == written.text
            assert same_state(found.state, written.state)
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
            items = [Item(driver.ids(TEXT)), Item(driver.ids("short")), Item(driver.ids(TEXT))]
            large = driver.job(Kind.SCORE, items, keep=Keep.SNAPSHOT)
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
            Kind.GENERATE, [Item(driver.ids("Hi"))], sampling=sampling, stream=True
        )
        await driver.until(lambda: len(running.by_item[0]) > 0)
        keep = Keep.SNAPSHOT
        with monkeypatch.context() as patch:
            if place == "streams":
                patch.setattr(scheduler, "streams_of", broken)
            elif place == "rows":
                patch.setattr(states.States, "_give_rows", broken)
            elif place == "keep":
                keep = Keep.RESIDENT
                patch.setattr(Residents, "keep", broken)
            else:
                patch.setattr(HandLane, "run", broken)
            given = None if place == "take" else start
            failing = driver.job(Kind.SCORE, [Item(driver.ids(TEXT), given)], keep=keep)
            with pytest.raises(OutOfDeviceMemory):
                await failing.results()
        assert same_state((await driver.score(TEXT, start)).state, expected.state)
        before = len(running.by_item[0])
        await driver.until(lambda: len(running.by_item[0]) > before)
        running.job.done.cancel()
        await driver.until(lambda: not driver.engine.rows)
        assert driver.engine._states.residents._promised == 0

    lane = HandLane(-1)
    with Driver(model, lane=lane) as driver:
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

    with Driver(model, Limits(max_batch_tokens=2048)) as driver:
        asyncio.run(run(driver))


def test_a_state_that_cannot_be_taken_back_to_a_stop_ends_its_request_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replay(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Stepper, "replay", replay)

    async def run(driver: Driver) -> None:
        whole = await driver.generate("Hi", 30)
        stop = whole.text[9]
        rest = [driver.generate("Hi", 30, keep=Keep.NOTHING) for _ in range(4)]
        stopped = driver.generate("Hi", 30, stop=(stop,))
        found = await asyncio.gather(stopped, *rest, return_exceptions=True)
        assert isinstance(found[0], OutOfDeviceMemory)
        for each in found[1:]:
            assert isinstance(each, Generated), each
            assert each.text == whole.text
        assert driver.engine.rows == 0

    with Driver(model) as driver:
        asyncio.run(run(driver))
