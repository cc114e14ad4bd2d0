"""Very many streams, kept by an engine in both tiers, each continued at random."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from sruserve.model.folder import Model
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Classified
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import StateOutput
from tests.server.engine.driver import Driver

CLASSIFIER: dict[str, Any] = {"task": "classify", "vocab_size": 50, "input_size": 8}
_AT_ONCE = 1000
_DEVICE_ROWS = 4000
_GROWTH = 4 << 20  # bytes that a round may leave behind by chance


def continue_all(model: Model, count: int, memory: Callable[[], int]) -> None:
    """Begin `count` streams, continue a random tenth, half of these once more.

    A thousand answers have to be those of streams that never stopped, and `memory`, in bytes, may
    not grow any more in the last round.
    """
    assert model.network.layout.width == 2 * 24
    pick = np.random.default_rng(0)
    first, second = pick.integers(0, 50, (2, count, 1))
    again = pick.permutation(count)[: count // 10]
    sample = set(again[:1000].tolist())
    states: list[Any] = [None] * count
    answers: dict[int, Any] = {}

    async def advance(driver: Driver, order: Any, inputs: Any, check: bool = False) -> None:
        """Continue the streams of `order` by a token each; their old states are dropped."""
        for at in range(0, len(order), _AT_ONCE):
            ids = order[at : at + _AT_ONCE].tolist()
            items = [SequenceInput(inputs[i], states[i]) for i in ids]
            results = await driver.job(
                JobKind.CLASSIFY, items, state_output=StateOutput.CACHED
            ).results()
            for index, i in enumerate(ids):
                (result,) = results[index]
                assert isinstance(result, Classified)
                if states[i] is not None:
                    driver.engine.drop(states[i].row)
                states[i] = result.state
                if check and i in sample:
                    answers[i] = result.probabilities

    async def run(driver: Driver) -> None:
        cache_entries = driver.engine._states.cache
        await advance(driver, np.arange(count), first)
        assert cache_entries.on_host > count - _DEVICE_ROWS - _AT_ONCE
        await advance(driver, pick.permutation(again), second, check=True)
        before = memory()
        await advance(driver, pick.permutation(again)[: count // 20], first)
        assert memory() < before + _GROWTH
        items = [SequenceInput(np.concatenate((first[i], second[i]))) for i in sample]
        whole = await driver.job(JobKind.CLASSIFY, items).results()
        for index, i in enumerate(sample):
            (result,) = whole[index]
            assert isinstance(result, Classified)
            assert np.array_equal(answers[i], result.probabilities)  # type: ignore[arg-type]
        # The last states are dropped by the engine's thread, those that move after their copies.
        await driver.until(lambda: cache_entries.on_device + cache_entries.on_host == count)

    row = model.network.layout.nbytes
    limits = EngineConfig(state_pool_bytes=_DEVICE_ROWS * row, state_host_bytes=count * row)
    with Driver(model, limits) as driver:
        asyncio.run(run(driver))
