"""The results of each step do not depend on how the engine cut the work."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from sruserve.model.folder import Model
from sruserve.model.heads.regression import Regression
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.output_reader import OutputReader, OutputSlice
from sruserve.server.engine.results import Encoded, Tagged
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.sequence_outputs import SequenceOutputs
from sruserve.server.engine.snapshot import StateOutput
from tests.server.engine.driver import Driver, same_state
from tests.support import random_model

IDS = np.arange(300, dtype=np.int64) % 20


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return random_model(tmp_path_factory.mktemp("tagger") / "m", "tag", vocab_size=20)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return random_model(tmp_path_factory.mktemp("encoder") / "m", "encode", vocab_size=20)


def tag(model: Model, state_output: StateOutput, *sizes: int, **options: int) -> list[Tagged]:
    """Tag the ids in chunks of these sizes, each from the state of the last."""

    async def run(driver: Driver) -> list[Tagged]:
        results: list[Tagged] = []
        begin = 0
        for size in sizes:
            start = results[-1].state if results else None
            item = SequenceInput(IDS[begin : begin + size], start)
            (result,) = (
                await driver.job(JobKind.TAG, [item], state_output=state_output).results()
            )[0]
            assert isinstance(result, Tagged)
            results.append(result)
            begin += size
        return results

    with Driver(model, EngineConfig(**options)) as driver:
        return asyncio.run(run(driver))


@pytest.mark.parametrize("state_output", [StateOutput.COPY, StateOutput.CACHED])
@pytest.mark.parametrize("step", [7, 64, 4096])
def test_labels_are_those_of_one_step_however_they_are_cut(
    tagger: Model, state_output: StateOutput, step: int
) -> None:
    (whole,) = tag(tagger, StateOutput.COPY, 300)
    parts = tag(tagger, state_output, 1, 100, 0, 199, max_batch_tokens=step)
    assert np.array_equal(np.concatenate([part.labels for part in parts]), whole.labels)
    assert np.array_equal(np.concatenate([part.scores for part in parts]), whole.scores)
    assert [part.before for part in parts] == [None, *whole.labels[[0, 100, 100]].tolist()]
    if state_output is StateOutput.COPY:
        assert same_state(parts[-1].state, whole.state)


def test_scores_are_taken_in_blocks_that_change_nothing(
    tagger: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = tag(tagger, StateOutput.COPY, 300)
    rows: list[int] = []
    logits = tagger.network.logits

    def spy(hidden: Tensor) -> Tensor:
        rows.append(len(hidden))
        return logits(hidden)

    monkeypatch.setattr(tagger.network, "logits", spy)
    (blocks,) = tag(tagger, StateOutput.COPY, 300, max_block_scores=64)
    assert 64 // len(tagger.labels) in rows
    assert 300 not in rows
    assert np.array_equal(blocks.labels, whole.labels)
    assert np.array_equal(blocks.scores, whole.scores)
    assert same_state(blocks.state, whole.state)


@pytest.mark.parametrize(
    "kind", [JobKind.CLASSIFY, JobKind.TAG, JobKind.REGRESS_STEPS, JobKind.ENCODE, JobKind.EMBED]
)
def test_what_a_step_finds_for_one_stream_keeps_nothing_of_the_others(
    tagger: Model, encoder: Model, tmp_path: Path, kind: JobKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = OutputReader.read
    collected: list[SequenceOutputs] = []

    def spy(reader: OutputReader, reads: Sequence[OutputSlice], hidden: Tensor) -> None:
        read(reader, reads, hidden)
        collected.extend(advance.outputs for advance, _ in reads)

    async def run(driver: Driver) -> None:
        await driver.job(kind, [SequenceInput(IDS[:size]) for size in (7, 50, 200)]).results()

    monkeypatch.setattr(OutputReader, "read", spy)
    models = {JobKind.TAG: tagger, JobKind.ENCODE: encoder, JobKind.EMBED: encoder}
    if kind is JobKind.REGRESS_STEPS:
        regression = Regression(names=("a", "b"), steps="every")
        models[kind] = random_model(tmp_path / "m", "regress", vocab_size=20, regression=regression)
    model = models.get(kind) or random_model(tmp_path / "m", "classify", vocab_size=20)
    with Driver(model, EngineConfig(max_batch_tokens=64)) as driver:
        asyncio.run(run(driver))
    arrays = [
        array
        for one in collected
        for array in (one.probabilities, one.vector, *one.values, *one.labels)
    ]
    assert len(arrays) >= 3
    assert all(array is None or array.base is None for array in arrays)


def test_the_scores_of_all_blocks_of_a_step_go_into_one_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(tmp_path / "m", vocab_size=20)
    read, log_probs = OutputReader.read, model.network.log_probs
    sizes: list[int] = []
    blocks: list[int] = []

    def spy(reader: OutputReader, reads: Sequence[OutputSlice], hidden: Tensor) -> None:
        read(reader, reads, hidden)
        sizes.extend(len(array) for advance, _ in reads for array in advance.outputs.values)

    def spy_block(logits: Tensor) -> Tensor:
        blocks.append(len(logits))
        return log_probs(logits)

    async def run(driver: Driver) -> None:
        await driver.job(JobKind.SCORE, [SequenceInput(IDS)]).results()

    monkeypatch.setattr(model.network, "log_probs", spy_block)
    monkeypatch.setattr(OutputReader, "read", spy)
    with Driver(model, EngineConfig(max_block_scores=64)) as driver:
        asyncio.run(run(driver))
    assert sizes == [len(IDS) - 1]
    assert len(blocks) == -(-len(IDS) // 3)


def test_outputs_of_many_streams_are_those_of_each_alone(encoder: Model) -> None:
    async def run(driver: Driver, items: list[SequenceInput]) -> list[Encoded]:
        results_of_item = await driver.job(JobKind.ENCODE, items).results()
        results = [results_of_item[index][0] for index in range(len(items))]
        assert all(isinstance(result, Encoded) for result in results)
        return results  # type: ignore[return-value]

    items = [SequenceInput(IDS[:size]) for size in (1, 300, 17, 64, 65)]
    with Driver(encoder, EngineConfig(max_batch_tokens=64)) as driver:
        together = asyncio.run(run(driver, items))
    with Driver(encoder) as driver:
        for item, result in zip(items, together, strict=True):
            (alone,) = asyncio.run(run(driver, [item]))
            assert result.outputs.shape == (len(item.inputs), 24)
            assert np.array_equal(result.outputs, alone.outputs)


def test_the_classes_of_many_inputs_are_taken_in_blocks_that_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(tmp_path / "m", "classify", vocab_size=20)

    async def run(driver: Driver) -> list[NDArray[np.float32]]:
        items = [SequenceInput(IDS[: 1 + i % 3]) for i in range(9)]
        job = driver.job(JobKind.CLASSIFY, items, state_output=StateOutput.COPY)
        results = await job.results()
        states = [results[i][0].state for i in range(len(items))]
        return [state.probabilities for state in states if state is not None]

    with Driver(model) as driver:
        whole = asyncio.run(run(driver))
    rows, logits = list[int](), model.network.logits

    def spy(hidden: Tensor) -> Tensor:
        rows.append(len(hidden))
        return logits(hidden)

    with Driver(model, EngineConfig(max_block_scores=4 * len(model.labels))) as driver:
        monkeypatch.setattr(model.network, "logits", spy)
        blocks = asyncio.run(run(driver))
    assert max(rows) == 4
    assert len(blocks) == 9
    assert np.array_equal(blocks, whole)
