"""What jobs on every step are told does not depend on how the engine cut the work."""

import asyncio

import numpy as np
import pytest

from sruserve.model.folder import Model
from sruserve.server.engine.jobs import Encoded, Item, Keep, Kind, Tagged
from sruserve.server.engine.limits import Limits
from tests.server.engine.driver import Driver, same_state
from tests.support import random_model

IDS = np.arange(300, dtype=np.int64) % 20


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return random_model(tmp_path_factory.mktemp("tagger") / "m", "tag", vocab_size=20)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return random_model(tmp_path_factory.mktemp("encoder") / "m", "encode", vocab_size=20)


def tag(model: Model, keep: Keep, *sizes: int, step: int = 4096) -> list[Tagged]:
    """Tag the ids in chunks of these sizes, each from the state of the last."""

    async def run(driver: Driver) -> list[Tagged]:
        found: list[Tagged] = []
        begin = 0
        for size in sizes:
            start = found[-1].state if found else None
            item = Item(IDS[begin : begin + size], start)
            (result,) = (await driver.job(Kind.TAG, [item], keep=keep).results())[0]
            assert isinstance(result, Tagged)
            found.append(result)
            begin += size
        return found

    with Driver(model, Limits(max_batch_tokens=step)) as driver:
        return asyncio.run(run(driver))


@pytest.mark.parametrize("keep", [Keep.SNAPSHOT, Keep.RESIDENT])
@pytest.mark.parametrize("step", [7, 64, 4096])
def test_labels_are_those_of_one_step_however_they_are_cut(
    tagger: Model, keep: Keep, step: int
) -> None:
    (whole,) = tag(tagger, Keep.SNAPSHOT, 300)
    parts = tag(tagger, keep, 1, 100, 0, 199, step=step)
    assert np.array_equal(np.concatenate([part.labels for part in parts]), whole.labels)
    assert np.array_equal(np.concatenate([part.scores for part in parts]), whole.scores)
    assert [part.before for part in parts] == [None, *whole.labels[[0, 100, 100]].tolist()]
    if keep is Keep.SNAPSHOT:
        assert same_state(parts[-1].state, whole.state)


def test_scores_are_taken_in_blocks_that_change_nothing(
    tagger: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = tag(tagger, Keep.SNAPSHOT, 300)
    monkeypatch.setattr("sruserve.server.engine.readout.LOGITS", 64)
    (blocks,) = tag(tagger, Keep.SNAPSHOT, 300)
    assert np.array_equal(blocks.labels, whole.labels)
    assert np.array_equal(blocks.scores, whole.scores)
    assert same_state(blocks.state, whole.state)


def test_outputs_of_many_streams_are_those_of_each_alone(encoder: Model) -> None:
    async def run(driver: Driver, items: list[Item]) -> list[Encoded]:
        told = await driver.job(Kind.ENCODE, items).results()
        results = [told[index][0] for index in range(len(items))]
        assert all(isinstance(result, Encoded) for result in results)
        return results  # type: ignore[return-value]

    items = [Item(IDS[:size]) for size in (1, 300, 17, 64, 65)]
    with Driver(encoder, Limits(max_batch_tokens=64)) as driver:
        together = asyncio.run(run(driver, items))
    with Driver(encoder) as driver:
        for item, result in zip(items, together, strict=True):
            (alone,) = asyncio.run(run(driver, [item]))
            assert result.outputs.shape == (len(item.inputs), 24)
            assert np.array_equal(result.outputs, alone.outputs)
