"""Jobs that one step answers when nothing else waits: the same results, and never another's."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.model.cells import FAMILIES
from sruserve.model.folder import Model
from sruserve.model.heads.config import HeadConfig
from sruserve.model.network import Network
from sruserve.model.text.packed import PackedIds
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Classified
from sruserve.server.engine.sequence_input import PackedInputs, SequenceInput
from sruserve.server.engine.snapshot import StateOutput
from sruserve.server.errors import DeadlineExceeded, EngineFailure, NotFinite
from tests.server.engine.driver import Driver, Submission
from tests.server.engine.thousands import CLASSIFIER
from tests.support import random_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return random_model(tmp_path_factory.mktemp("classifier") / "m", **CLASSIFIER)


class Watched(Driver):
    """An engine whose scheduler's steps are counted, and whose jobs wait for `go`."""

    scheduled = 0

    def __enter__(self) -> "Watched":
        step, receive = self.engine._runner.step, self.engine._admission_queue.receive
        self.go = threading.Event()

        def count(*arguments: Any) -> Any:
            self.scheduled += 1
            return step(*arguments)

        def receive_together(timeout: float | None) -> Any:
            messages = receive(timeout)
            if timeout != 0 and messages:
                self.go.wait(60)
                messages += receive(0)
            return messages

        self.engine._runner.step = count  # type: ignore[assignment]
        self.engine._admission_queue.receive = receive_together  # type: ignore[method-assign]
        super().__enter__()
        return self

    def read(self, *lengths: int, **fields: Any) -> Submission:
        """A job that classifies inputs of these lengths."""
        items = [SequenceInput(np.arange(length) % 50) for length in lengths]
        return self.job(JobKind.CLASSIFY, items, **fields)


@pytest.fixture
def driver(model: Model) -> Iterator[Watched]:
    with Watched(model) as driver:
        yield driver


async def classes(submission: Submission) -> list[Any]:
    """The probabilities of a job's items, in their order."""
    results = await submission.results()
    assert all(len(of_item) == 1 for of_item in results.values())
    return [results[index][0].probabilities for index in sorted(results)]  # type: ignore[union-attr]


def test_the_scheduler_would_have_given_the_same_bits(driver: Watched) -> None:
    async def run() -> None:
        driver.go.set()
        at_once = await classes(driver.read(1, 7, 40))
        assert driver.scheduled == 0
        scheduled = await classes(driver.read(1, 7, 40, state_output=StateOutput.COPY))
        assert driver.scheduled > 0
        for one, other in zip(at_once, scheduled, strict=True):
            assert np.array_equal(one, other)

    asyncio.run(run())


def test_packed_texts_have_the_bits_of_single_ones_and_are_delivered_together(
    driver: Watched,
) -> None:
    piece = driver.model.network.piece_rows
    inputs = [np.arange(length) % 50 for length in (piece - 1, 2, piece, 1, 7)]
    together: list[Sequence[Any]] = []

    async def run() -> None:
        driver.go.set()
        one_by_one = await classes(driver.job(JobKind.CLASSIFY, list(map(SequenceInput, inputs))))
        packed = PackedInputs(PackedIds.joined(inputs))
        job = driver.job(JobKind.CLASSIFY, packed, deliver_all=together.append)
        assert await job.results() == {}
        assert driver.scheduled == 0
        scheduled = driver.job(JobKind.CLASSIFY, packed, state_output=StateOutput.COPY)
        results = zip(one_by_one, together[0], await classes(scheduled), strict=True)
        for probabilities, result, of_scheduler in results:
            assert np.array_equal(probabilities, result.probabilities)
            assert np.array_equal(probabilities, of_scheduler)
        assert [result.steps for result in together[0]] == list(map(len, inputs))

    asyncio.run(run())
    assert len(together) == 1
    assert driver.scheduled > 0


FORMS: list[dict[str, Any]] = [
    *({"model_type": family} for family in FAMILIES if family != "srupp"),
    {"model_type": "srupp", "proj_size": 12, "num_heads": 2, "window": 8},
    {"bidirectional": True},
    *({"head": HeadConfig.model_validate({"pooling": pooling})} for pooling in ("mean", "max")),
    {"head": HeadConfig.model_validate({"pooling": ["last", "max", "mean"]})},
    {"head": HeadConfig.model_validate({"pooling": ["final", "mean"], "final": ["1.c"]})},
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_one_step_of_any_network_classifies_as_the_scheduler_does(
    form: dict[str, Any], tmp_path: Path
) -> None:
    model = random_model(tmp_path / "m", "classify", input_size=8, **form)
    numbers = np.random.default_rng(0).normal(size=(3, 30, 8)).astype(np.float32)
    items = [SequenceInput(rows[:length]) for rows, length in zip(numbers, (1, 30, 7), strict=True)]

    async def run(driver: Watched) -> None:
        driver.go.set()
        at_once = await classes(driver.job(JobKind.CLASSIFY, items))
        assert driver.scheduled == 0
        driver.go.clear()
        encoded = driver.job(JobKind.ENCODE, [SequenceInput(numbers[0])])  # not of one step
        scheduled = driver.job(JobKind.CLASSIFY, items)
        driver.go.set()
        await encoded.results()
        for one, other in zip(at_once, await classes(scheduled), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)

    with Watched(model) as driver:
        asyncio.run(run(driver))
    assert driver.scheduled > 0


def test_inputs_that_fill_several_pieces_are_split_between_them(driver: Watched) -> None:
    piece = driver.model.network.piece_rows

    async def run() -> None:
        driver.go.set()
        lengths = [piece - 1, 2, piece, 1, 3]
        together = await classes(driver.read(*lengths))
        for length, one in zip(lengths, together, strict=True):
            (alone,) = await classes(driver.read(length))
            assert np.array_equal(one, alone)

    asyncio.run(run())
    assert driver.scheduled == 0


def test_short_inputs_of_several_pieces_are_computed_together(
    driver: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, rows = driver.model.network, list[int]()
    assert isinstance(network, Network)
    compute = network._run

    def count(inputs: Tensor, piece: RaggedBatch) -> Tensor:
        rows.append(len(inputs))
        return compute(inputs, piece)

    async def run() -> None:
        driver.go.set()
        lengths = [length % 40 + 1 for length in range(network.piece_rows // 10)]
        together = await classes(driver.read(*lengths))
        pieces = 1 if network._compiled is not None else 2  # a processor may lack its vectors
        assert len(rows) == pieces
        assert sum(lengths) > network.piece_rows
        for length, one in zip(lengths[:40], together, strict=False):
            (alone,) = await classes(driver.read(length))
            assert np.array_equal(one, alone)

    monkeypatch.setattr(network, "_run", count)
    asyncio.run(run())
    assert driver.scheduled == 0


def test_a_part_too_small_for_its_threads_splits_no_input(model: Model) -> None:
    """Two threads take slices of all inputs, and of the first part, but not of the last one."""
    lengths = [500] * 10 + [30]  # the last part has 1,030 rows, of pieces of 1,024

    async def run(driver: Watched) -> None:
        driver.engine._threads.small_rows = 0
        driver.engine.alone = True  # so that one step takes them all
        driver.go.set()
        together = await classes(driver.read(*lengths))
        for length, one in zip(lengths[-2:], together[-2:], strict=True):
            (alone,) = await classes(driver.read(length))
            assert np.array_equal(one, alone)

    with Watched(model, EngineConfig(max_batch_tokens=8192, threads=2)) as driver:
        asyncio.run(run(driver))
    assert driver.scheduled == 0


def test_jobs_that_wait_together_take_one_step(driver: Watched) -> None:
    async def run() -> None:
        jobs = [driver.read(5) for _ in range(20)]
        driver.go.set()
        for submission in jobs:
            (result,) = (await submission.results())[0]
            assert isinstance(result, Classified)
            assert result.steps == 5
            assert result.probabilities is not None
            assert result.probabilities.base is not None
            assert result.probabilities.base.size == 3, "it keeps more than its own job's"
        assert driver.counts.sequences == [20]
        assert driver.counts.tokens == [100]
        assert driver.counts.calls["queued"] == 20
        assert driver.counts.calls["consumed"] == 100
        await driver.until(lambda: (driver.counts.waiting, driver.engine.waiting) == (0, 0))
        assert driver.engine.rows == 0

    asyncio.run(run())
    assert driver.scheduled == 0


@pytest.mark.parametrize(
    ("lengths", "fields"),
    [
        ([5, 5000], {}),  # an input of several pieces
        ([5], {"state_output": StateOutput.COPY}),
        ([5], {"kind": JobKind.ENCODE}),
    ],
    ids=["long", "state", "kind"],
)
def test_one_job_of_another_kind_leaves_all_to_the_scheduler(
    driver: Watched, lengths: list[int], fields: dict[str, Any]
) -> None:
    async def run() -> None:
        plain = driver.read(5)
        items = [SequenceInput(np.arange(length) % 50) for length in lengths]
        other = driver.job(items=items, **{"kind": JobKind.CLASSIFY, **fields})
        driver.go.set()
        await plain.results()
        await other.results()

    asyncio.run(run())
    assert driver.scheduled > 0


def test_a_large_step_of_several_tenants_is_shared_by_the_scheduler(driver: Watched) -> None:
    async def run() -> None:
        jobs = [driver.read(100, tenant=f"tenant {number}") for number in range(2)]
        driver.go.set()
        for submission in jobs:
            await submission.results()

    asyncio.run(run())
    assert driver.scheduled > 0


def test_jobs_that_do_not_fit_into_one_step_take_several(model: Model) -> None:
    async def run(driver: Watched) -> None:
        jobs = [driver.read(length, 1) for length in (50, 48, 49, 47, 46, 3)]
        driver.go.set()
        results = [await classes(submission) for submission in jobs]
        # The oldest two; then the smallest, with one that came before a larger one; then the rest.
        assert driver.counts.tokens == [100, 4 + 47 + 48, 50]
        assert driver.engine.waiting == 0
        await driver.until(lambda: driver.counts.waiting == 0)  # reported a little later
        for submission, probabilities in zip(jobs, results, strict=True):
            for item, one in zip(submission.job.items, probabilities, strict=True):
                (alone,) = await classes(driver.read(len(item.inputs)))
                assert np.array_equal(one, alone)

    with Watched(model, EngineConfig(max_batch_tokens=100)) as driver:
        asyncio.run(run(driver))
    assert driver.scheduled == 0


@pytest.mark.parametrize("alone", [False, True], ids=["several callers", "one caller"])
def test_one_caller_gets_the_results_of_a_step_when_the_next_one_computes(
    model: Model, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[bool] = []
    read = threading.Event()

    async def run(driver: Watched) -> None:
        engine, one_step = driver.engine, driver.engine._one_step
        classify, compute = one_step._classify, one_step._run

        def begin(*arguments: Any) -> Any:
            waited.append(bool(engine._dispatcher._messages))
            return classify(*arguments)

        def compute_when_read(*arguments: Any) -> Any:
            if len(waited) > 1:
                assert read.wait(20), "nobody has got the results of the step before"
            return compute(*arguments)

        monkeypatch.setattr(one_step, "_classify", begin)
        monkeypatch.setattr(one_step, "_run", compute_when_read)
        engine.alone = alone
        jobs = [driver.read(60), driver.read(60)]
        driver.go.set()
        await jobs[0].results()
        read.set()
        await jobs[1].results()

    with Watched(model, EngineConfig(max_batch_tokens=100)) as driver:
        asyncio.run(run(driver))
    assert waited == [False, alone]
    assert driver.scheduled == 0


@pytest.mark.parametrize(
    ("length", "fields"),
    [(60, {"tenant": "other"}), (60, {"priority": 1}), (101, {})],
    ids=["tenant", "priority", "length"],
)
def test_jobs_that_cannot_take_turns_are_left_to_the_scheduler(
    model: Model, length: int, fields: dict[str, Any]
) -> None:
    async def run(driver: Watched) -> None:
        jobs = [driver.read(60), driver.read(length, **fields)]
        driver.go.set()
        for submission in jobs:
            await submission.results()

    with Watched(model, EngineConfig(max_batch_tokens=100)) as driver:
        asyncio.run(run(driver))
    assert driver.scheduled > 0


def test_jobs_that_are_left_go_to_the_scheduler_beside_one_of_another_kind(model: Model) -> None:
    async def run(driver: Watched) -> None:
        first, *others = [driver.read(60) for _ in range(3)]
        receive, came = driver.engine._admission_queue.receive, threading.Event()

        def receive_another(timeout: float | None) -> Any:
            messages = receive(timeout)
            if messages and messages[0] is not first.job:
                came.wait(60)
                messages += receive(0)
            return messages

        driver.engine._admission_queue.receive = receive_another  # type: ignore[method-assign]
        driver.go.set()
        await first.results()
        assert driver.scheduled == 0
        another = driver.read(5, state_output=StateOutput.COPY)
        came.set()
        for submission in (*others, another):
            await submission.results()

    with Watched(model, EngineConfig(max_batch_tokens=100)) as driver:
        asyncio.run(run(driver))
    assert driver.scheduled > 0


def test_a_job_that_was_cancelled_or_waited_too_long_gets_no_result(driver: Watched) -> None:
    async def run() -> None:
        left, late = driver.read(5), driver.read(5, deadline=1e-9)
        stays = driver.read(5)
        left.job.done.cancel()
        driver.go.set()
        await stays.results()
        with pytest.raises(DeadlineExceeded):
            await late.results()
        assert not left.by_item
        assert not late.by_item

    asyncio.run(run())


def test_a_step_that_fails_is_the_schedulers_and_ends_its_jobs_alone(
    driver: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, hidden = threading.Event(), driver.model.network.hidden

    def fail(*arguments: Any) -> Any:
        if failing.is_set():
            raise RuntimeError("broken")
        return hidden(*arguments)

    monkeypatch.setattr(driver.model.network, "hidden", fail)

    async def run() -> None:
        driver.go.set()
        failing.set()
        with pytest.raises(EngineFailure):
            await driver.read(5).results()
        failing.clear()
        await driver.read(5).results()
        assert driver.counts.calls["queued"] == 2

    asyncio.run(run())
    assert driver.scheduled == 1


def test_a_fault_beside_the_step_leaves_its_jobs_to_the_scheduler(
    driver: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, failed = driver.counts.step, list[int]()

    def fail_once(*arguments: Any) -> None:
        if not failed:
            failed.append(1)
            raise RuntimeError("broken")
        step(*arguments)

    monkeypatch.setattr(driver.counts, "step", fail_once)
    monkeypatch.setattr(driver.engine._one_step._metrics, "step", fail_once)

    async def run() -> None:
        driver.go.set()
        assert len(await classes(driver.read(5, 6))) == 2
        await driver.until(lambda: not driver.engine.busy)

    asyncio.run(run())
    assert driver.scheduled == 1


def test_numbers_that_are_not_finite_are_the_fault_of_their_own_job(tmp_path: Path) -> None:
    model = random_model(tmp_path / "m", "classify", input_size=8)
    huge = np.full((3, 8), 3e38, np.float32)
    fine = np.ones((3, 8), np.float32)

    async def run(driver: Watched) -> None:
        wrong = driver.job(JobKind.CLASSIFY, [SequenceInput(huge)])
        right = driver.job(JobKind.CLASSIFY, [SequenceInput(fine)])
        driver.go.set()
        with pytest.raises(NotFinite):
            await wrong.results()
        (probabilities,) = await classes(right)
        assert probabilities.sum() == pytest.approx(1)
        assert driver.counts.sequences == [2]

    with Watched(model) as driver:
        asyncio.run(run(driver))
