"""The engine's guarantees, bit for bit: split, company, restore, seed."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Classified
from sruserve.server.engine.sequence_input import SequenceInput
from tests.server.engine.driver import Driver, row_of, same_state
from tests.server.engine.long_text import TEXT
from tests.support import random_model


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
