"""Penalties, biases and lists of allowed tokens: what they do, and whom they leave alone."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sruserve.kernels.slots import WINDOW
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.sampling import logits_processors
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import Row, StateOutput
from sruserve.server.errors import InvalidRequest
from tests.server.engine.driver import Driver, same_state
from tests.support import random_model


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with Driver(random_model(tmp_path_factory.mktemp("lm") / "lm")) as driver:
        yield driver
        assert driver.engine.rows == 0, "a row leaked"


ADJUSTMENTS = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.8, 1.0])},
    optional={
        "frequency_penalty": st.sampled_from([-0.5, 0.7, 2.0]),
        "presence_penalty": st.sampled_from([-1.0, 1.5]),
        "repetition_penalty": st.just(1.4),
        "top_k": st.just(5),
        "logit_bias": st.just(((3, -100.0), (7, 4.5))),
        "allowed": st.just((1, 3, 7, 40, 41, 42, 60)),
    },
)


@settings(max_examples=12)
@given(adjustments=ADJUSTMENTS, cuts=st.lists(st.integers(0, 40), max_size=3))
def test_an_adjusted_completion_is_the_same_in_any_split_and_company(
    lm: Driver, adjustments: dict[str, Any], cuts: list[int]
) -> None:
    async def run() -> None:
        whole = await lm.generate("To be", 40, **adjustments)
        plain = await lm.generate("Hello", 40)
        others = [lm.generate("Hi", 9 + i, seed=i, presence_penalty=i / 3) for i in range(4)]
        again, other, *_ = await asyncio.gather(
            lm.generate("To be", 40, **adjustments), lm.generate("Hello", 40), *others
        )
        assert (again.text, other.text) == (whole.text, plain.text)
        assert same_state(again.state, whole.state)
        text, state, prompt = "", None, "To be"
        for begin, end in pairwise([0, *sorted(cuts), 40]):
            part = await lm.generate(prompt, end - begin, start=state, **adjustments)
            text, state, prompt = text + part.text, part.state, ""
        assert text == whole.text

    asyncio.run(run())


@pytest.mark.parametrize("temperature", [0.0, 1.0, 50.0])
def test_nothing_but_allowed_tokens_is_picked_however_unlikely_they_are(
    lm: Driver, temperature: float
) -> None:
    allowed = tuple(lm.ids("xyz").tolist())
    unlikely = tuple((token, -100.0) for token in allowed)

    async def run() -> None:
        made = await lm.generate(
            "To be", 200, temperature=temperature, allowed=allowed, logit_bias=unlikely
        )
        assert set(made.tokens) <= set(allowed)

    asyncio.run(run())


def test_a_large_bias_decides(lm: Driver) -> None:
    (token,) = lm.ids("q").tolist()

    async def run() -> None:
        assert (await lm.generate("To be", 20, logit_bias=((token, 100.0),))).text == "q" * 20
        assert "q" not in (await lm.generate("To be", 300, logit_bias=((token, -100.0),))).text

    asyncio.run(run())


def test_penalties_follow_their_formula_in_the_window_of_the_state(lm: Driver) -> None:
    """At temperature 0, each token is the best of the scores that the model is asked for again."""
    each, once = 0.9, 0.4

    async def run() -> None:
        made = await lm.generate(
            "To be", 100, temperature=0.0, frequency_penalty=each, presence_penalty=once
        )
        context = lm.ids("To be").tolist()
        network = lm.model.network
        state = network.layout.allocate(1)
        with torch.inference_mode():
            for token in made.tokens:
                hidden, state = _run(network, context[-1:] if len(context) > 5 else context, state)
                scores = network.logits(hidden[-1:])[0]
                for seen, count in Counter(context[-WINDOW:]).items():
                    scores[seen] -= each * count + once
                assert int(scores.argmax()) == token
                context.append(token)

    asyncio.run(run())


def _run(network: Any, tokens: list[int], state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from sruserve.kernels import RaggedBatch

    row = torch.tensor([0])
    batch = RaggedBatch(torch.tensor([0, len(tokens)]), state, row, row)
    return network.hidden(torch.tensor(tokens), batch), state


def test_logprobs_are_those_of_the_model_before_adjustments(lm: Driver) -> None:
    async def run() -> None:
        made = await lm.generate("Hello", 12, logprobs=3, allowed=(5, 6), frequency_penalty=1.0)
        scored = await lm.score("Hello" + made.text)
        prompt = await lm.score("Hello")
        total = sum(entry.logprob for entry in made.logprobs)
        assert total == pytest.approx(scored.log_likelihood - prompt.log_likelihood, abs=1e-4)

    asyncio.run(run())


@pytest.mark.parametrize("fields", [{"allowed": (5,)}, {"logit_bias": ((3, -1.0),)}])
def test_a_job_keeps_no_more_of_what_it_adds_than_it_was_sent(
    lm: Driver, fields: dict[str, Any]
) -> None:
    async def run() -> None:
        job = lm.job(
            JobKind.GENERATE,
            [SequenceInput(lm.ids("a"))],
            sampling=Sampling(max_tokens=1, **fields),
        )
        await job.results()
        assert job.job.added is not None
        assert [len(each) for each in job.job.added] == [1, 1]

    asyncio.run(run())


class Reads(tuple[Any, ...]):
    """Counts how often it is read as a whole."""

    __slots__ = ()
    reads = 0

    def __iter__(self) -> Iterator[Any]:
        Reads.reads += 1
        return super().__iter__()


@pytest.mark.parametrize(
    "fields", [{"allowed": Reads((1, 3))}, {"logit_bias": Reads([(3, -100.0)])}]
)
def test_what_a_job_adds_to_scores_is_made_once(lm: Driver, fields: dict[str, Any]) -> None:
    async def run(items: int, tokens: int) -> int:
        Reads.reads = 0
        sampling = Sampling(max_tokens=tokens, **fields)
        await lm.job(
            JobKind.GENERATE, [SequenceInput(lm.ids("a"))] * items, sampling=sampling
        ).results()
        return Reads.reads

    assert asyncio.run(run(1, 1)) == asyncio.run(run(5, 20))


def test_sequences_of_one_job_share_what_it_adds_in_a_step(
    lm: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Job] = []
    static_bias = logits_processors._static_bias

    def noted(job: Job, vocabulary: int) -> Row:
        jobs.append(job)
        return static_bias(job, vocabulary)

    monkeypatch.setattr(logits_processors, "_static_bias", noted)

    async def run() -> None:
        items = [SequenceInput(lm.ids("a"), seed=seed) for seed in range(5)]
        sampling = Sampling(max_tokens=1, allowed=(1, 3))
        await lm.job(JobKind.GENERATE, items, sampling=sampling).results()

    asyncio.run(run())
    assert len(jobs) == 1


@pytest.mark.parametrize("fields", [{"allowed": (95,)}, {"logit_bias": ((-1, 1.0),)}])
def test_tokens_that_the_model_does_not_have_are_refused(
    lm: Driver, fields: dict[str, Any]
) -> None:
    async def run() -> None:
        with pytest.raises(InvalidRequest):
            await lm.generate("To be", 5, **fields)

    asyncio.run(run())


def _note(order: list[str], name: str, _: object) -> None:
    order.append(name)


def test_a_job_of_a_smaller_priority_number_is_begun_first(tmp_path: Any) -> None:
    model = random_model(tmp_path / "lm")
    order: list[str] = []

    async def run(driver: Driver) -> None:
        sampling = Sampling(max_tokens=4)
        first = driver.job(
            JobKind.GENERATE,
            [SequenceInput(driver.ids("a" * 400))],
            sampling=sampling,
            state_output=StateOutput.NONE,
        )
        jobs = {}
        for name, priority in (("low", 5), ("late", 5), ("high", -1), ("middle", 0)):
            jobs[name] = driver.job(
                JobKind.GENERATE,
                [SequenceInput(np.full(60, 3))] * 2,
                sampling=sampling,
                priority=priority,
            )
            jobs[name].job.done.add_done_callback(partial(_note, order, name))
        await asyncio.gather(*(submission.results() for submission in (first, *jobs.values())))
        assert order[:2] == ["high", "middle"]

    with Driver(model, EngineConfig(max_batch_tokens=4)) as driver:
        asyncio.run(run(driver))
