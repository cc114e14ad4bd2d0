"""The engine's guarantees, bit for bit: split, company, restore, seed; and what failure leaves."""

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sruserve.model.network import Network
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.constraint import Constraint
from sruserve.server.engine.constrained.state import ConstraintState
from sruserve.server.engine.job import (
    Classified,
    Generated,
    JobKind,
    Sampling,
    SequenceInput,
    Snapshot,
    StateOutput,
)
from sruserve.server.engine.scheduling.scheduler import Scheduler
from sruserve.server.engine.sequence import ActiveSequence
from sruserve.server.engine.settle import Settler
from sruserve.server.errors import (
    DeadlineExceeded,
    Draining,
    EmptyInput,
    EngineFailure,
    InputTooLong,
    Overloaded,
)
from tests.server.engine.driver import Driver, row_of, same_state
from tests.support import random_model

TEXT = "It was the best of times, it was the worst of times. " * 40


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def lm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    model = random_model(tmp_path_factory.mktemp("lm") / "lm", dtype=request.param)
    with Driver(model, EngineConfig(max_batch_tokens=256)) as driver:
        yield driver
        assert driver.engine.rows == 0, "a row leaked"


@settings(max_examples=20)
@given(
    cuts=st.lists(st.integers(0, 60), max_size=4),
    sampling=st.sampled_from(
        [{"temperature": 0.0}, {"temperature": 0.8, "top_k": 30}, {"repetition_penalty": 3.0}]
    ),
)
def test_a_completion_continued_from_its_state_is_the_one_that_never_stopped(
    lm: Driver, cuts: list[int], sampling: dict[str, Any]
) -> None:
    async def run() -> None:
        whole = await lm.generate("To be", 60, **sampling)
        text, state, prompt = "", None, "To be"
        edges = [0, *sorted(cuts), 60]
        for begin, end in pairwise(edges):
            part = await lm.generate(prompt, end - begin, start=state, **sampling)
            text, state, prompt = text + part.text, part.state, ""
        assert text == whole.text
        assert same_state(state, whole.state)

    asyncio.run(run())


def test_a_completion_that_decodes_holds_neither_its_prompt_nor_its_first_state(lm: Driver) -> None:
    async def run() -> None:
        start = (await lm.generate("To be", 1)).state
        assert start is not None
        ids, row = lm.ids(", or not"), row_of(start).copy()
        began = weakref.ref(ids), weakref.ref(row)
        told = lm.job(
            JobKind.GENERATE,
            [SequenceInput(ids, replace(start, row=row))],
            sampling=Sampling(max_tokens=10**6),
            stream=True,
        )
        del ids, row
        await lm.until(lambda: all(array() is None for array in began))
        assert not told.job.done.done()
        told.job.done.cancel()

    asyncio.run(run())


def test_company_never_changes_a_completion(lm: Driver) -> None:
    async def run() -> None:
        alone = await lm.generate("Hello", 50, top_k=20, repetition_penalty=1.2)
        others: list[Any] = [
            lm.generate(TEXT[: 7 * i], 30 + i, seed=i, top_p=0.9) for i in range(1, 12)
        ]
        others += [lm.score(TEXT[i:]) for i in range(3)]
        again, *_ = await asyncio.gather(
            lm.generate("Hello", 50, top_k=20, repetition_penalty=1.2), *others
        )
        assert again.text == alone.text
        assert same_state(again.state, alone.state)

    asyncio.run(run())


@settings(max_examples=10)
@given(cut=st.integers(0, len(TEXT)))
def test_a_score_in_chunks_is_the_score_of_the_whole(lm: Driver, cut: int) -> None:
    async def run() -> None:
        whole = await lm.score(TEXT)
        first = await lm.score(TEXT[:cut])
        second = await lm.score(TEXT[cut:], start=first.state)
        assert first.tokens + second.tokens == whole.tokens == len(TEXT) - 1
        assert first.characters + second.characters == whole.characters
        assert first.log_likelihood + second.log_likelihood == pytest.approx(
            whole.log_likelihood, rel=1e-12
        )
        assert same_state(second.state, whole.state)

    asyncio.run(run())


def test_a_score_does_not_depend_on_how_the_engine_cuts_it(lm: Driver) -> None:
    async def run() -> None:
        alone = await lm.score(TEXT)
        together = await asyncio.gather(*(lm.score(TEXT) for _ in range(7)))
        assert {scored.log_likelihood for scored in together} == {alone.log_likelihood}

    asyncio.run(run())


def test_a_seed_fixes_the_text_and_choices_differ(lm: Driver) -> None:
    async def run() -> None:
        first, again, other, choice = await asyncio.gather(
            lm.generate("A", 40),
            lm.generate("A", 40),
            lm.generate("A", 40, seed=8),
            lm.generate("A", 40, choice=1),
        )
        assert first.text == again.text
        assert len({first.text, other.text, choice.text}) == 3

    asyncio.run(run())


def test_all_of_a_completion_comes_in_whole_bursts(tmp_path: Path) -> None:
    async def run(driver: Driver) -> None:
        await driver.generate("To be", 1 + 10 * 16)

    with Driver(random_model(tmp_path / "lm"), EngineConfig(burst=16)) as driver:
        asyncio.run(run(driver))
        assert driver.counts.calls["step"] == 1 + 10


@pytest.fixture
def may_begin(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set it to let grammars begin."""
    event = threading.Event()
    monkeypatch.setattr(ConstraintState, "ready", lambda *_: event.is_set())
    return event


async def constrained(driver: Driver) -> "asyncio.Task[Generated]":
    """A completion with a grammar, which the engine has accepted."""
    constraint = Constraint.regex("[a-z]{9}", ByteVocabulary.of(driver.model.codec))
    task = asyncio.create_task(driver.generate("a", 9, constraint=constraint))
    while not driver.engine.running:
        await asyncio.sleep(0.001)
    return task


def test_a_grammar_that_begins_cuts_no_burst_of_others(
    tmp_path: Path, may_begin: threading.Event
) -> None:
    async def run(driver: Driver) -> None:
        other = await constrained(driver)
        await driver.generate("To be", 1 + 10 * 16)
        assert driver.counts.calls["step"] == 1 + 10
        may_begin.set()
        await other

    with Driver(random_model(tmp_path / "lm"), EngineConfig(burst=16)) as driver:
        asyncio.run(run(driver))


def test_a_grammar_that_is_ready_ends_the_burst_of_others(
    tmp_path: Path, may_begin: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(driver: Driver) -> None:
        other = await constrained(driver)
        with monkeypatch.context() as patch:
            patch.setattr(Scheduler, "_enqueue_if_begun", lambda *_: None)  # it looked before
            assert not driver.engine._scheduler.has_waiting
            may_begin.set()
            assert driver.engine._scheduler.has_waiting
        await other
        assert not driver.engine._scheduler.has_waiting

    with Driver(random_model(tmp_path / "lm"), EngineConfig(burst=16)) as driver:
        asyncio.run(run(driver))


@pytest.mark.parametrize("length", [1, 3])
def test_a_stop_string_inside_a_burst_leaves_the_state_right_behind_it(
    lm: Driver, length: int
) -> None:
    async def run() -> None:
        whole = await lm.generate("To be", 48)
        stop = whole.text[21 : 21 + length]
        at = whole.text.find(stop)
        stopped = await lm.generate("To be", 48, stop=(stop,))
        assert (stopped.text, stopped.finish_reason) == (whole.text[:at], "stop")
        assert stopped.stop_reason == stop
        rest = await lm.generate("", 48 - at - length, start=stopped.state)
        assert whole.text[:at] + stop + rest.text == whole.text
        assert same_state(rest.state, whole.state)

    asyncio.run(run())


@pytest.mark.parametrize("most", [4096, 32])
def test_texts_that_end_inside_a_burst_are_taken_back_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    settled: list[list[int]] = []  # the rows of each forward pass while a step is settled
    settle, hidden = Settler.settle, Network.hidden
    settling = False

    def noted(*given: Any) -> None:
        nonlocal settling
        settling = True
        settled.append([])
        settle(*given)
        settling = False

    def counted(network: Network, inputs: torch.Tensor, *given: Any) -> torch.Tensor:
        if settling:
            settled[-1].append(len(inputs))
        return hidden(network, inputs, *given)

    monkeypatch.setattr(Settler, "settle", noted)
    monkeypatch.setattr(Network, "hidden", counted)
    stop = tuple("etaoinshr")

    async def run(lm: Driver) -> None:
        alone = [await lm.generate("To be", 48, choice=i, stop=stop) for i in range(24)]
        one_by_one = lm.counts.calls["replayed"]
        settled.clear()
        items = [SequenceInput(lm.ids("To be"), seed=7, choice=i) for i in range(24)]
        told = lm.job(
            JobKind.GENERATE,
            items,
            sampling=Sampling(max_tokens=48, stop=stop),
            state_output=StateOutput.COPY,
        )
        for i, (made,) in (await told.results()).items():
            assert isinstance(made, Generated)
            assert made.text == alone[i].text
            assert same_state(made.state, alone[i].state)
        passes = [rows for rows in settled if rows]
        assert 0 < 2 * sum(map(len, passes)) <= lm.counts.calls["replayed"] - one_by_one
        for rows in passes:
            assert max(rows) <= most
            assert all(first + then > most for first, then in pairwise(rows))
        assert lm.engine.rows == 0

    with Driver(random_model(tmp_path / "lm"), EngineConfig(max_batch_tokens=most)) as lm:
        asyncio.run(run(lm))


@settings(max_examples=15)
@given(cut=st.integers(1, 47), begin=st.integers(2, 40), length=st.integers(2, 6))
def test_a_stop_string_across_two_requests_stops_as_in_one(
    lm: Driver, cut: int, begin: int, length: int
) -> None:
    async def run() -> None:
        whole = await lm.generate("To be", 48)
        stop = (whole.text[begin : begin + length],)
        expected = await lm.generate("To be", 48, stop=stop)
        first = await lm.generate("To be", cut, stop=stop)
        if first.finish_reason == "stop":
            assert first.text == expected.text
            return
        second = await lm.generate("", 48 - cut, start=first.state, stop=stop)
        assert first.text + second.text == expected.text
        assert same_state(second.state, expected.state)

    asyncio.run(run())


def test_text_is_told_as_it_comes_and_once(lm: Driver) -> None:
    async def run() -> None:
        item = SequenceInput(lm.ids("Hello"), seed=3)
        told = lm.job(
            JobKind.GENERATE,
            [item],
            sampling=Sampling(max_tokens=1000),
            stream=True,
            state_output=StateOutput.COPY,
        )
        parts = (await told.results())[0]
        whole = await lm.generate("Hello", 1000, seed=3)
        assert len(parts) > 3
        assert "".join(part.text for part in parts if isinstance(part, Generated)) == whole.text
        assert [getattr(part, "finish_reason", "") for part in parts[:-1]] == [None] * (
            len(parts) - 1
        )
        assert same_state(getattr(parts[-1], "state", None), whole.state)

    asyncio.run(run())


def test_logprobs_are_those_that_scoring_gives(lm: Driver) -> None:
    async def run() -> None:
        made = await lm.generate("Hello", 12, logprobs=3, temperature=0.0)
        scored = await lm.score("Hello" + made.text)
        prompt = await lm.score("Hello")
        total = sum(entry.logprob for entry in made.logprobs)
        assert total == pytest.approx(scored.log_likelihood - prompt.log_likelihood, abs=1e-4)
        assert "".join(entry.token for entry in made.logprobs) == made.text
        assert all(len(entry.top) == 3 for entry in made.logprobs)
        assert all(entry.logprob == max(entry.top.values()) for entry in made.logprobs)

    asyncio.run(run())


def test_an_empty_chunk_changes_no_state(lm: Driver) -> None:
    async def run() -> None:
        first = await lm.score("Hello")
        second = await lm.score("", start=first.state)
        assert (second.tokens, second.log_likelihood) == (0, 0.0)
        assert same_state(first.state, second.state)
        taken = await lm.generate("Hello", 0)
        assert (taken.text, taken.finish_reason) == ("", "length")
        assert taken.state is not None
        assert first.state is not None
        assert np.array_equal(row_of(taken.state), row_of(first.state))

    asyncio.run(run())


def test_a_completion_of_nothing_is_refused(lm: Driver) -> None:
    async def run() -> None:
        with pytest.raises(EmptyInput):
            await lm.generate("", 5)
        with pytest.raises(EmptyInput):
            await lm.generate("", 5, start=(await lm.score("")).state)

    asyncio.run(run())


def test_a_token_that_is_no_text_alone_is_told_as_its_bytes(tmp_path: Path) -> None:
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
        told = lm.job(JobKind.GENERATE, [item], sampling=Sampling(max_tokens=10**6), stream=True)
        while not told.by_item:
            await asyncio.sleep(0.01)
        one = {"pool": (1, lm.model.network.layout.nbytes)}
        await lm.until(lambda: lm.counts.tiers == one)
        told.job.done.cancel()
        await lm.until(lambda: (lm.engine.rows, lm.engine.running) == (0, 0))
        heard = len(told.by_item[0])
        await lm.until(lambda: lm.counts.tiers == {"pool": (0, 0)})
        assert len(told.by_item[0]) == heard

    asyncio.run(run())


def test_a_failed_step_fails_its_jobs_and_nobody_else(
    lm: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        before = await lm.generate("Hello", 20)

        def broken(*_: Any) -> None:
            raise RuntimeError("no memory")

        with monkeypatch.context() as patch:
            patch.setattr(Network, "hidden", broken)
            with pytest.raises(EngineFailure):
                await lm.generate("Hello", 20)
        assert lm.engine.rows == 0
        assert lm.engine.waiting == 0
        after = await lm.generate("Hello", 20)
        assert after.text == before.text

    asyncio.run(run())


def test_a_failure_in_settling_ends_its_jobs_and_leaves_no_row(
    lm: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        before = await lm.generate("Hello", 40)
        settle, failures = ActiveSequence.write, iter([False, False, True])

        def broken(stream: ActiveSequence, *told: Any) -> Any:
            if next(failures, False):
                raise RuntimeError("no memory")
            return settle(stream, *told)

        with monkeypatch.context() as patch:
            patch.setattr(ActiveSequence, "write", broken)
            results = await asyncio.gather(
                *(lm.generate("Hello", 40) for _ in range(4)), return_exceptions=True
            )
        assert any(isinstance(result, EngineFailure) for result in results)
        assert (lm.engine.rows, lm.engine.waiting, lm.engine.running) == (0, 0, 0)
        assert (await lm.generate("Hello", 40)).text == before.text

    asyncio.run(run())


def test_a_model_that_does_not_run_is_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(Network, "hidden", broken)
    with pytest.raises(EngineFailure, match="no memory"), Driver(random_model(tmp_path / "lm")):
        pass


def test_no_stream_reads_what_another_left_in_its_row(tmp_path: Path) -> None:
    model = random_model(tmp_path / "lm")
    limits = EngineConfig(state_pool_bytes=4 * model.network.layout.nbytes)

    async def run(driver: Driver) -> None:
        first = await driver.score(TEXT)
        driver.engine._states.pool.rows.fill_(torch.nan)  # whoever reads an old row shows it
        for _ in range(9):
            again = await driver.score(TEXT)
            assert again.log_likelihood == first.log_likelihood
            assert same_state(again.state, first.state)
        empty = await driver.score("")
        assert empty.state is not None
        assert not row_of(empty.state).any()

    with Driver(model, limits) as driver:
        asyncio.run(run(driver))


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
        told = driver.job(
            JobKind.GENERATE,
            [SequenceInput(driver.ids("Hi"))],
            sampling=Sampling(max_tokens=400),
            stream=True,
        )
        while not told.by_item:
            await asyncio.sleep(0.001)
        driver.counts.tokens.clear()
        await driver.score(TEXT)
        assert max(driver.counts.tokens) <= 512 // 8 + 16
        await told.results()

    with Driver(model, EngineConfig(max_batch_tokens=512)) as driver:
        asyncio.run(run(driver))


def test_a_full_queue_refuses_at_once_and_goes_on(tmp_path: Path) -> None:
    model = random_model(tmp_path / "lm")

    async def run(driver: Driver) -> None:
        items = [SequenceInput(driver.ids(TEXT))] * 10
        jobs = [driver.job(JobKind.SCORE, items, input_bytes=10) for _ in range(3)]
        with pytest.raises(Overloaded):
            driver.job(JobKind.SCORE, items, input_bytes=10)
        for told in jobs:
            assert len(await told.results()) == 10
        assert driver.engine.waiting == 0
        await driver.score("Hello")
        driver.job(JobKind.SCORE, items, input_bytes=90)
        with pytest.raises(Overloaded):
            driver.job(JobKind.SCORE, items, input_bytes=20)

    with Driver(model, EngineConfig(max_queue_requests=3, max_queue_bytes=100)) as driver:
        asyncio.run(run(driver))


def test_a_job_that_waits_past_its_deadline_is_dropped(tmp_path: Path) -> None:
    model = random_model(tmp_path / "lm")

    async def run(driver: Driver) -> None:
        late = driver.job(JobKind.SCORE, [SequenceInput(driver.ids("Hello"))], deadline=1e-9)
        with pytest.raises(DeadlineExceeded):
            await late.results()
        assert driver.engine.waiting == 0

    with Driver(model) as driver:
        asyncio.run(run(driver))


def test_a_stopping_engine_finishes_its_work_and_takes_no_more(tmp_path: Path) -> None:
    async def run() -> None:
        with Driver(random_model(tmp_path / "lm")) as driver:
            running = asyncio.create_task(driver.generate("Hello", 300))
            endless = driver.job(
                JobKind.GENERATE,
                [SequenceInput(driver.ids("Hi"))],
                sampling=Sampling(max_tokens=10**7),
            )
            await asyncio.sleep(0.05)
            await asyncio.to_thread(driver.engine.stop, 5)
            assert len((await running).text) == 300
            with pytest.raises(Draining):
                await endless.results()
            with pytest.raises(Draining):
                await driver.generate("Hello", 1)

    asyncio.run(run())


def test_a_stop_in_the_middle_of_a_long_input_ends_its_job(tmp_path: Path) -> None:
    async def run() -> None:
        with Driver(random_model(tmp_path / "lm"), EngineConfig(max_batch_tokens=64)) as driver:
            items = [SequenceInput(driver.ids(TEXT * 90))] * 3
            jobs = [driver.job(JobKind.SCORE, items) for _ in range(3)]
            await driver.until(lambda: driver.engine.running > 0)
            await asyncio.to_thread(driver.engine.stop, 0.0)
            for told in jobs:
                with pytest.raises(Draining):
                    await told.results()
            assert (driver.engine.rows, driver.engine.waiting) == (0, 0)
            assert driver.engine.alive

    asyncio.run(run())


def test_jobs_that_are_submitted_while_the_engine_stops_all_get_an_outcome(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        with Driver(random_model(tmp_path / "lm")) as driver:
            stopping = asyncio.create_task(asyncio.to_thread(driver.engine.stop, 1.0))
            outcomes = []
            while not stopping.done():
                with contextlib.suppress(Draining):
                    outcomes.append(driver.job(JobKind.SCORE, [SequenceInput(driver.ids("Hello"))]))
                await asyncio.sleep(0)
            for told in outcomes:
                with contextlib.suppress(Draining):
                    await told.results()

    asyncio.run(run())


def test_hostile_sampling_values_touch_nobody_else(lm: Driver) -> None:
    async def run() -> None:
        alone = await lm.generate("Hello", 30)
        hostile = [
            lm.generate("Hello", 30, **values)
            for values in (
                {"top_k": 10**20},
                {"temperature": 1e-45},
                {"temperature": 1e300},
                {"top_p": 1e-300},
                {"min_p": 1.0, "repetition_penalty": 1e9},
            )
        ]
        again, *texts = await asyncio.gather(lm.generate("Hello", 30), *hostile)
        assert again.text == alone.text
        assert all(len(result.text) == 30 for result in texts)

    asyncio.run(run())


def test_a_failing_scheduler_ends_what_is_here_and_the_engine_goes_on(
    lm: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no memory")

    async def run() -> None:
        before = await lm.generate("Hello", 20)
        with monkeypatch.context() as patch:
            patch.setattr(Scheduler, "_share", broken)
            with pytest.raises(EngineFailure):
                await lm.generate("Hello", 20)
        assert (lm.engine.rows, lm.engine.waiting) == (0, 0)
        assert (await lm.generate("Hello", 20)).text == before.text

    asyncio.run(run())


def test_a_job_that_cannot_be_prepared_fails_alone(
    lm: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        bad = SequenceInput(
            np.zeros((2, 2, 2), np.int64)[:, :0], start=Snapshot(lm.zero_row(), pending=3)
        )
        failed = lm.job(JobKind.SCORE, [bad])
        good = await lm.generate("Hello", 20)
        with pytest.raises(EngineFailure):
            await failed.results()
        assert len(good.text) == 20

    asyncio.run(run())


def test_text_held_back_comes_before_what_follows_a_new_prompt(lm: Driver) -> None:
    async def run() -> None:
        made = await lm.generate("To be", 20)
        stop = (made.text[-1] + "zzz",)
        first = await lm.generate("To be", 20, stop=stop)
        assert first.state is not None
        assert (first.text, first.state.held) == (made.text[:-1], made.text[-1])
        second = await lm.generate("or not", 5, start=first.state, stop=("zzz",))
        assert second.text[0] == made.text[-1]
        assert len(second.text) == 6

    asyncio.run(run())


def test_a_classifier_gives_each_item_what_it_gets_alone(tmp_path: Path) -> None:
    model = random_model(tmp_path / "c", "classify", vocab_size=50)
    pick = np.random.default_rng(0)
    inputs = [pick.integers(0, 50, pick.integers(1, 40)).tolist() for _ in range(200)]

    async def run(driver: Driver) -> None:
        items = [SequenceInput(np.array(ids, np.int64)) for ids in inputs]
        together = await driver.job(JobKind.CLASSIFY, items).results()
        for index, ids in enumerate(inputs):
            alone = await driver.classify(ids)
            (result,) = together[index]
            assert isinstance(result, Classified)
            assert result.probabilities is not None
            assert alone.probabilities is not None
            assert (result.probabilities == alone.probabilities).all()
            half = await driver.classify(ids[: len(ids) // 2])
            rest = await driver.classify(ids[len(ids) // 2 :], start=half.state)
            assert rest.probabilities is not None
            assert (rest.probabilities == alone.probabilities).all()
            assert same_state(rest.state, alone.state)
            last = await driver.classify([], start=rest.state)
            assert last.probabilities is not None
            assert (last.probabilities == alone.probabilities).all()
            assert same_state(last.state, alone.state)

    with Driver(model, EngineConfig(max_batch_tokens=512)) as driver:
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


def test_a_device_that_is_dead_ends_its_engine_so_that_probes_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = threading.Event()

    def fault(*_: Any) -> None:
        submitted.wait(60)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    async def run(driver: Driver) -> None:
        await driver.score("It was")
        monkeypatch.setattr(Network, "hidden", fault)
        monkeypatch.setattr("sruserve.server.engine.engine.is_lost", lambda device: True)
        jobs = [driver.job(JobKind.SCORE, [SequenceInput(driver.ids("It was"))]) for _ in range(3)]
        submitted.set()
        found = await asyncio.gather(*(job.results() for job in jobs), return_exceptions=True)
        assert all(isinstance(each, EngineFailure) for each in found), found
        await driver.until(lambda: not driver.engine.alive)
        with pytest.raises(Draining):
            driver.job(JobKind.SCORE, [SequenceInput(driver.ids("It was"))])

    with Driver(random_model(tmp_path / "m")) as driver:
        asyncio.run(run(driver))


def test_a_request_without_inputs_is_refused(tmp_path: Path) -> None:
    async def run(driver: Driver) -> None:
        with pytest.raises(EmptyInput):
            driver.job(JobKind.SCORE, [])

    with Driver(random_model(tmp_path / "m")) as driver:
        asyncio.run(run(driver))
