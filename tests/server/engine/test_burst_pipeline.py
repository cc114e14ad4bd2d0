"""Bursts as on a GPU, each launched before the last one is settled, give the results of the CPU.

Streams end at different steps of a burst, at stop strings, or because their clients leave.
"""

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from sruserve.model.folder import Model
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.engine import _STEPS_BESIDE
from sruserve.server.engine.graph_decoder import GraphDecoder
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.model_runner import ModelRunner
from sruserve.server.engine.results import Generated
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import StateOutput
from sruserve.server.errors import EngineFailure
from tests.server.engine.driver import Driver, Submission, same_state
from tests.server.engine.graph_stand_in import on_graphs
from tests.support import random_model

BURST = 8
LIMITS = EngineConfig(max_batch_tokens=256, burst=BURST)
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 6, "top_p": 0.9},
    {"temperature": 1.2, "min_p": 0.02, "repetition_penalty": 1.4},
]
Scenario = Callable[[Driver], Coroutine[Any, Any, list[Generated]]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return random_model(tmp_path_factory.mktemp("model") / "lm")


@pytest.fixture(scope="module")
def cpu(model: Model) -> Iterator[Driver]:
    with Driver(model, LIMITS) as driver:
        yield driver


@pytest.fixture(scope="module")
def graphs(model: Model, cpu: Driver) -> Iterator[tuple[Driver, list[str]]]:
    with on_graphs(model) as events, Driver(model, LIMITS) as driver:
        yield driver, events
        assert driver.engine.rows == 0, "a row leaked"


async def different_lengths(driver: Driver) -> list[Generated]:
    """Streams that end at every step of a burst, with every kind of sampling."""
    return await asyncio.gather(
        *(
            driver.generate("To be", 1 + number, seed=number, **SAMPLINGS[number % 4])
            for number in range(3 * BURST)
        )
    )


async def forks(driver: Driver) -> list[Generated]:
    """Choices of one prompt with one seed, from one state, and what goes on from each end."""
    first = await driver.generate("To be", 11, seed=2**64 - 1)
    ends = await asyncio.gather(
        *(driver.generate("", 9, seed=5, choice=k, start=first.state) for k in range(4))
    )
    rest = [driver.generate("so", 7, seed=5, choice=3, start=end.state) for end in ends]
    return [first, *ends, *await asyncio.gather(*rest)]


async def stop_strings(driver: Driver) -> list[Generated]:
    """Texts that a stop string ends in the middle of a burst, beside one that goes on."""
    whole = await driver.generate("To be", 4 * BURST, seed=3)
    stops = [whole.text[at : at + 2] for at in range(2, 3 * BURST, 3)]
    texts = [driver.generate("To be", 4 * BURST, seed=3, stop=(stop,)) for stop in stops]
    ended = await asyncio.gather(driver.generate("To be", 5 * BURST, seed=4), *texts)
    rest = [driver.generate("", 5, seed=3, start=each.state) for each in ended]
    return [whole, *ended, *await asyncio.gather(*rest)]


async def details(driver: Driver) -> list[Generated]:
    """Log-probabilities and a biased text, for which the host needs every step's scores."""
    texts = [
        driver.generate("To be", 2 * BURST, seed=1, logprobs=2),
        driver.generate("To be", 3 * BURST, seed=1),
        driver.generate("To be", 3 * BURST, seed=1, logit_bias=((3, 4.0),)),
        driver.generate("To be", 2 * BURST, seed=6, min_tokens=5, stop=("e",)),
    ]
    return await asyncio.gather(*texts)


async def arrivals(driver: Driver) -> list[Generated]:
    """Prompts that come while others decode."""
    tasks = []
    for number in range(6):
        tasks.append(
            asyncio.create_task(driver.generate("To be " * 9, 5 * BURST + number, seed=number))
        )
        begun = driver.engine.turns
        await driver.until(lambda begun=begun: driver.engine.turns > begun + 1)  # type: ignore[misc]
    return await asyncio.gather(*tasks)


@pytest.mark.parametrize("scenario", [different_lengths, forks, stop_strings, details, arrivals])
def test_results_are_those_of_the_cpu(
    scenario: Scenario, cpu: Driver, graphs: tuple[Driver, list[str]]
) -> None:
    driver, events = graphs
    events.clear()
    counted = driver.counts.calls["generated"]
    generated, expected = asyncio.run(scenario(driver)), asyncio.run(scenario(cpu))
    assert "launch" in events
    assert driver.counts.calls["generated"] - counted == sum(len(each.tokens) for each in generated)
    assert len(generated) == len(expected)
    for mine, theirs in zip(generated, expected, strict=True):
        assert (mine.text, list(mine.tokens)) == (theirs.text, list(theirs.tokens))
        assert (mine.finish_reason, mine.stop_reason) == (theirs.finish_reason, theirs.stop_reason)
        assert [each.token for each in mine.logprobs] == [each.token for each in theirs.logprobs]
        assert same_state(mine.state, theirs.state)


def streamed(driver: Driver, seed: int, tokens: int, **fields: Any) -> Submission:
    sampling = Sampling(max_tokens=tokens, state_interval=fields.pop("state_interval", 0))
    item = SequenceInput(driver.ids("To be"), seed=seed)
    return driver.job(JobKind.GENERATE, [item], sampling=sampling, stream=True, **fields)


def test_an_idle_engine_holds_nothing_of_the_last_texts(
    graphs: tuple[Driver, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (driver, _), limits, seen = graphs, GraphDecoder.limits, list[weakref.ref[Any]]()

    def noted(decoder: GraphDecoder, sequences: Any, steps: int) -> Any:
        seen.extend(map(weakref.ref, sequences))
        return limits(decoder, sequences, steps)

    async def run() -> None:
        await driver.generate("To be", 3 * BURST)
        await driver.until(lambda: not any(sequence() for sequence in seen))

    monkeypatch.setattr(GraphDecoder, "limits", noted)
    asyncio.run(run())
    assert seen


def test_clients_who_leave_change_nothing_for_others(
    cpu: Driver, graphs: tuple[Driver, list[str]]
) -> None:
    driver, _ = graphs

    async def run() -> list[Generated]:
        leaving = [streamed(driver, seed, 10_000) for seed in range(3)]
        staying = [asyncio.create_task(driver.generate("To be", 50, seed=s)) for s in range(3)]
        for each in leaving:
            await driver.until(lambda each=each: bool(each.by_item))  # type: ignore[misc]
            each.job.done.cancel()
        results = await asyncio.gather(*staying)
        await driver.until(lambda: not driver.engine.busy)
        return results

    async def alone() -> list[Generated]:
        return [await cpu.generate("To be", 50, seed=seed) for seed in range(3)]

    generated, expected = asyncio.run(run()), asyncio.run(alone())
    for mine, theirs in zip(generated, expected, strict=True):
        assert list(mine.tokens) == list(theirs.tokens)
        assert same_state(mine.state, theirs.state)


def test_every_intermediate_state_continues_its_text(
    cpu: Driver, graphs: tuple[Driver, list[str]]
) -> None:
    driver, _ = graphs

    async def run() -> None:
        submission = streamed(driver, 9, 60, state_interval=11, state_output=StateOutput.COPY)
        pieces = [p for p in (await submission.results())[0] if isinstance(p, Generated)]
        text, states = "", []
        for piece in pieces:
            text += piece.text
            if piece.state is not None:
                states.append((text, piece.state))
        assert text == (await cpu.generate("To be", 60, seed=9)).text
        places = [len(so_far) for so_far, _ in states[:-1]]
        assert places == [11, 22, 33, 44, 55]
        for so_far, state in states[:-1]:
            rest = await cpu.generate("", 60 - len(so_far), seed=9, start=state)
            assert so_far + rest.text == text

    asyncio.run(run())


def launches(events: list[str], driver: Driver, *lengths: int) -> list[str]:
    events.clear()

    async def run() -> None:
        await asyncio.gather(*(driver.generate("To", n, seed=n) for n in lengths))

    asyncio.run(run())
    return list(events)


def test_a_burst_is_launched_before_the_last_one_is_collected(
    graphs: tuple[Driver, list[str]],
) -> None:
    driver, events = graphs
    seen = launches(events, driver, 1 + 5 * BURST)
    assert seen == ["launch", *["launch", "collect"] * 4, "collect"]


def test_a_text_decodes_in_short_bursts_beside_the_steps_of_a_long_prompt(
    graphs: tuple[Driver, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (driver, _), seen = graphs, list[str]()
    launch, step = ModelRunner.launch, ModelRunner.step

    def noted_launch(
        runner: ModelRunner, sequences: Any, steps: int, begun: float, alone: bool
    ) -> Any:
        seen.append(f"{steps} steps" + " alone" * alone)
        return launch(runner, sequences, steps, begun, alone)

    def noted_step(runner: ModelRunner, batch: Any, *rest: Any) -> Any:
        seen.append("inputs")
        assert not batch.decodes, "the text is in a graph"
        return step(runner, batch, *rest)

    async def run() -> None:
        text = streamed(driver, 1, 10_000)
        await driver.until(lambda: bool(text.by_item))
        seen.clear()
        monkeypatch.setattr(ModelRunner, "launch", noted_launch)
        monkeypatch.setattr(ModelRunner, "step", noted_step)
        await driver.score("To be " * 100)
        text.job.done.cancel()
        await driver.until(lambda: not driver.engine.busy)

    asyncio.run(run())
    first = seen.index("inputs")
    last = len(seen) - seen[::-1].index("inputs")
    beside = f"{_STEPS_BESIDE} steps"
    assert seen[first - 1 : last] == [beside, "inputs"] * ((last - first + 1) // 2)
    assert seen.count("inputs") > 3


def test_the_end_of_one_stream_shortens_no_burst_of_others(
    graphs: tuple[Driver, list[str]],
) -> None:
    driver, events = graphs
    before = len(driver.counts.tokens)
    seen = launches(events, driver, 1 + 6 * BURST, *range(2, 2 + BURST))
    bursts = [n for n in driver.counts.tokens[before:] if n >= BURST]
    assert len(bursts) <= 8
    assert seen.count("launch") == seen.count("collect") <= 9


def test_without_rows_for_two_bursts_each_is_settled_first(model: Model, cpu: Driver) -> None:
    rows = 8 * model.network.layout.nbytes
    limits = EngineConfig(max_batch_tokens=256, burst=BURST, state_pool_bytes=rows)

    async def run(driver: Driver) -> list[Generated]:
        return await asyncio.gather(*(driver.generate("To", 40, seed=s) for s in range(4)))

    with on_graphs(model) as events, Driver(model, limits) as driver:
        generated = asyncio.run(run(driver))
        assert ["launch", "launch", "launch"] not in [events[i : i + 3] for i in range(len(events))]
    expected = asyncio.run(run(cpu))
    assert [list(each.tokens) for each in generated] == [list(each.tokens) for each in expected]


def test_a_burst_that_fails_ends_its_jobs_and_no_later_ones(
    graphs: tuple[Driver, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, _ = graphs

    def fail(*_: Any) -> None:
        raise RuntimeError("a kernel")

    async def run() -> None:
        for name in ("collect", "launch"):
            with monkeypatch.context() as patch:
                patch.setattr(GraphDecoder, name, fail)
                both = (driver.generate("To", 40, seed=seed) for seed in (1, 2))
                results = await asyncio.gather(*both, return_exceptions=True)
                assert all(isinstance(each, EngineFailure) for each in results)
                await driver.until(lambda: not driver.engine.busy)
        assert driver.engine.rows == 0
        assert len((await driver.generate("To", 40)).tokens) == 40

    asyncio.run(run())


def test_a_drain_delivers_what_running_texts_have(model: Model, tmp_path: Path) -> None:
    async def run(driver: Driver) -> None:
        task = asyncio.create_task(driver.generate("To be", 10**6, seed=1))
        await driver.until(lambda: driver.counts.calls["step"] > 3)
        driver.engine.drain(0)
        result = await task
        assert result.stop_reason == "draining"
        assert result.state is not None
        assert len(result.tokens) == result.state.steps - len(driver.ids("To be")) + 1

    with on_graphs(model), Driver(model, LIMITS) as driver:
        asyncio.run(run(driver))
        assert driver.engine.rows == 0
