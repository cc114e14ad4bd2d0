"""Checkpoints and handed back states: whoever is cut off goes on, character for character."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Generated
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.errors import Draining
from tests.server.engine.driver import Driver, Submission, same_state
from tests.server.engine.hand_copy_stream import HandCopyStream
from tests.support import random_model


@pytest.fixture(scope="module", params=["printable", "bytes"])
def lm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("lm") / "lm"
    if request.param == "bytes":  # many characters of two bytes
        model = random_model(folder, vocabulary=[97, 98, 99, 0xC3, 0xC5, *range(0xA0, 0xC0)])
    else:
        model = random_model(folder)
    with Driver(model) as driver:
        yield driver
        assert driver.engine.rows == 0, "a row leaked"


def streamed(driver: Driver, prompt: str, tokens: int, seed: int, **sampling: Any) -> Submission:
    options = Sampling(max_tokens=tokens, **sampling)
    item = SequenceInput(driver.ids(prompt), seed=seed)
    return driver.job(
        JobKind.GENERATE, [item], sampling=options, state_output=StateOutput.COPY, stream=True
    )


def pieces(results: list[Any]) -> list[Generated]:
    assert all(isinstance(result, Generated) for result in results)
    return results


@settings(max_examples=15)
@given(
    interval=st.integers(1, 30),
    seed=st.integers(0, 2**32),
    begin=st.integers(0, 60),
    length=st.integers(1, 4),
    penalty=st.sampled_from([0.0, 1.0]),
)
def test_every_checkpoint_continues_as_if_nothing_had_happened(
    lm: Driver, interval: int, seed: int, begin: int, length: int, penalty: float
) -> None:
    async def run() -> None:
        free = await lm.generate("ab", 80, seed)
        stop = (free.text[begin : begin + length] or "a", "zzz", "\u0169\u0169")
        options: dict[str, Any] = {"stop": stop, "frequency_penalty": penalty}
        whole = await lm.generate("ab", 80, seed, **options)
        submission = streamed(lm, "ab", 80, seed, state_interval=interval, **options)
        parts = pieces((await submission.results())[0])
        assert "".join(part.text for part in parts) == whole.text
        assert same_state(parts[-1].state, whole.state)
        text, used, since = "", 0, 0
        for part in parts[:-1]:
            text, used, since = text + part.text, used + len(part.tokens), since + len(part.text)
            if part.state is None:
                continue
            assert since >= interval
            since = 0
            rest = await lm.generate("", 80 - used, seed, start=part.state, **options)
            assert text + rest.text == whole.text
            assert (rest.finish_reason, rest.stop_reason) == (
                whole.finish_reason,
                whole.stop_reason,
            )
            assert same_state(rest.state, whole.state)

    asyncio.run(run())


def test_an_interval_of_one_tells_a_state_with_every_character(lm: Driver) -> None:
    async def run(driver: Driver) -> list[Generated]:
        return pieces((await streamed(driver, "ab", 50, 3, state_interval=1).results())[0])

    never, always = 1e9, 0.0  # milliseconds until text is delivered although no state is due
    with Driver(lm.model, EngineConfig(flush_ms=never, flush_max_ms=never)) as driver:
        parts = asyncio.run(run(driver))
    assert all(part.state is not None for part in parts)
    assert all(len(part.text) == 1 for part in parts[:-1])
    with Driver(lm.model, EngineConfig(flush_ms=always, flush_max_ms=always)) as driver:
        delivered = asyncio.run(run(driver))
    assert all((part.state is not None) == bool(part.text) for part in delivered[:-1])
    assert [part.text for part in delivered if part.text] == [
        part.text for part in parts if part.text
    ]


@pytest.mark.parametrize("state_output", [StateOutput.NONE, StateOutput.CACHED])
def test_only_who_keeps_snapshots_gets_checkpoints(lm: Driver, state_output: StateOutput) -> None:
    async def run() -> None:
        sampling = Sampling(max_tokens=50, state_interval=1)
        item = SequenceInput(lm.ids("ab"))
        submission = lm.job(
            JobKind.GENERATE, [item], sampling=sampling, state_output=state_output, stream=True
        )
        parts = pieces((await submission.results())[0])
        assert all(part.state is None for part in parts[:-1])
        if state_output is StateOutput.CACHED:
            state = parts[-1].state
            assert state is not None
            lm.engine.drop(state.row)  # type: ignore[arg-type]
            await lm.until(lambda: lm.engine.rows == 0)

    asyncio.run(run())


@pytest.mark.parametrize("rows", [2, 1000])
def test_text_and_last_result_wait_for_a_checkpoint_that_is_on_its_way(
    tmp_path: Path, rows: int
) -> None:
    model = random_model(tmp_path / "lm")
    copy_stream = HandCopyStream()

    async def run(driver: Driver) -> None:
        whole = await asyncio.gather(
            asyncio.create_task(allow_copies()), driver.generate("ab", 60, 3)
        )
        copy_stream.allowed = len(copy_stream.copies)  # from here on nothing moves
        submission = streamed(driver, "ab", 60, 3, state_interval=7)
        if rows > 2:
            await driver.until(lambda: driver.engine.running == 1 and len(copy_stream.copies) > 1)
            await asyncio.sleep(0.1)
            assert all(part.state is None for part in pieces(submission.by_item[0]))
            assert len("".join(part.text for part in pieces(submission.by_item[0]))) <= 7
        copy_stream.allowed = -1
        parts = pieces((await submission.results())[0])
        assert "".join(part.text for part in parts) == whole[1].text
        text, used = "", 0
        for part in parts:
            text, used = text + part.text, used + len(part.tokens)
            if part.state is not None:
                rest = await driver.generate("", 60 - used, 3, start=part.state)
                assert text + rest.text == whole[1].text
        assert sum(part.state is not None for part in parts) >= 2
        await driver.until(lambda: driver.engine.rows == 0)

    async def allow_copies() -> None:
        copy_stream.allowed = -1

    limits = EngineConfig(
        state_pool_bytes=rows * model.network.layout.nbytes,
        burst=4,  # so that there is text between two checkpoints
        flush_ms=0,
        flush_max_ms=0,
    )
    with Driver(model, limits, copy_stream) as driver:
        asyncio.run(run(driver))


def test_a_checkpoint_that_cannot_be_copied_costs_only_itself(tmp_path: Path) -> None:
    copy_stream = HandCopyStream(allowed=-1)

    async def run(driver: Driver) -> None:
        whole = await driver.generate("ab", 60, 3)
        copy_stream.refuse = RuntimeError("no memory")
        parts = pieces((await streamed(driver, "ab", 60, 3, state_interval=20).results())[0])
        assert "".join(part.text for part in parts) == whole.text
        assert same_state(parts[-1].state, whole.state)

    with Driver(random_model(tmp_path / "lm"), copy_stream=copy_stream) as driver:
        asyncio.run(run(driver))


@pytest.mark.parametrize("staged", [False, True])
def test_what_runs_at_the_end_of_a_drain_is_handed_back_with_its_state(
    tmp_path: Path, staged: bool
) -> None:
    model = random_model(tmp_path / "lm")
    max_tokens = 10**6

    async def run() -> tuple[str, int, Snapshot]:
        with Driver(model, copy_stream=HandCopyStream(allowed=-1) if staged else None) as driver:
            draining = streamed(driver, "ab", max_tokens, 3)
            quiet = driver.job(
                JobKind.GENERATE,
                [SequenceInput(driver.ids("ab"), seed=3, choice=choice) for choice in range(3)],
                sampling=Sampling(max_tokens=max_tokens),
                state_output=StateOutput.COPY,
            )
            lost = driver.job(
                JobKind.GENERATE,
                [SequenceInput(driver.ids("ab"))],
                sampling=Sampling(max_tokens=max_tokens),
            )
            await driver.until(lambda: bool(draining.by_item))
            await asyncio.to_thread(driver.engine.stop, 0.1)
            with pytest.raises(Draining):
                await lost.results()
            for last in (results[-1] for results in (await quiet.results()).values()):
                assert isinstance(last, Generated)
                assert (last.finish_reason, last.stop_reason) == ("length", "draining")
                assert last.state is not None
            parts = pieces((await draining.results())[0])
            assert (parts[-1].finish_reason, parts[-1].stop_reason) == ("length", "draining")
            assert parts[-1].state is not None
            assert driver.engine.rows == 0
            text = "".join(part.text for part in parts)
            return text, sum(len(part.tokens) for part in parts), parts[-1].state

    text, used, state = asyncio.run(run())

    async def go_on() -> None:
        with Driver(model) as driver:
            whole = await driver.generate("ab", used + 30, 3)
            rest = await driver.generate("", 30, 3, start=state)
            assert text + rest.text == whole.text

    asyncio.run(go_on())
