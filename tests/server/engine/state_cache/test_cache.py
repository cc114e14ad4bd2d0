"""Kept states: continued, forked, moved to the host and back, dropped; never mixed up."""

import asyncio
import contextlib
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sruserve.model.folder import Model
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Scored
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.engine.state_cache.cache import CachedState
from sruserve.server.engine.state_cache.copy_stream import InlineCopyStream
from sruserve.server.engine.state_cache.pool import HostRows, StatePool
from sruserve.server.errors import Overloaded, StateExpired, StateWrongModel
from tests.memory import malloc_bytes, python_blocks
from tests.server.engine.driver import Driver, same_state
from tests.server.engine.hand_copy_stream import HandCopyStream
from tests.server.engine.thousands import CLASSIFIER, continue_all
from tests.server.hand_clock import HandClock
from tests.support import random_model

TEXT = "It was the best of times, it was the worst of times. " * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return random_model(tmp_path_factory.mktemp("lm") / "lm")


def limits(model: Model, device_rows: int, host_rows: int = 0, **more: int) -> EngineConfig:
    row = model.network.layout.nbytes
    return EngineConfig(
        state_pool_bytes=device_rows * row, state_host_bytes=host_rows * row, **more
    )


def cached(snapshot: Snapshot | None) -> CachedState:
    assert snapshot is not None
    assert isinstance(snapshot.row, CachedState)
    return snapshot.row


async def cache_state(driver: Driver, text: str, start: Snapshot | None = None) -> Snapshot:
    state = (await driver.score(text, start, state_output=StateOutput.CACHED)).state
    assert state is not None
    assert isinstance(state.row, CachedState)
    return state


def drop(driver: Driver, *states: Snapshot) -> None:
    for state in states:
        driver.engine.drop(cached(state))


async def all_free(driver: Driver) -> None:
    cache_entries = driver.engine._states.cache
    await driver.until(lambda: not driver.engine.rows and not cache_entries.on_host)
    assert (cache_entries.on_device, cache_entries._reserved) == (0, 0)


def test_a_kept_state_is_continued_as_if_it_had_never_stopped(model: Model) -> None:
    async def run(driver: Driver) -> None:
        whole = await driver.score(TEXT)
        first = await cache_state(driver, TEXT[:50])
        second = await cache_state(driver, TEXT[50:90], first)
        last = await driver.score(TEXT[90:], second)
        assert same_state(last.state, whole.state)
        again = await driver.score(TEXT[50:], first)  # rewound
        assert same_state(again.state, whole.state)
        assert driver.engine.rows == 2
        drop(driver, first, second)
        await all_free(driver)

    with Driver(model) as driver:
        asyncio.run(run(driver))


def test_a_kept_state_is_forked_to_many_and_stays_what_it_was(model: Model) -> None:
    async def run(driver: Driver) -> None:
        start = await cache_state(driver, TEXT)
        items = [SequenceInput(driver.ids(TEXT[i:]), start) for i in range(20)]
        forks = await driver.job(JobKind.SCORE, items, state_output=StateOutput.CACHED).results()
        whole = [await driver.score(TEXT + TEXT[i:]) for i in range(20)]
        copies = [await driver.score("", forks[i][0].state) for i in range(20)]
        for copy, scored in zip(copies, whole, strict=True):
            assert same_state(copy.state, scored.state)
        twin = await cache_state(driver, "", start)
        assert cached(twin) is not cached(start)
        drop(driver, start)
        assert same_state((await driver.score("", twin)).state, (await driver.score(TEXT)).state)
        empty = await cache_state(driver, "")
        assert not (await driver.score("", empty)).state.row.any()  # type: ignore[union-attr]
        drop(driver, twin, empty, *(forks[i][0].state for i in range(20)))  # type: ignore[arg-type]
        await all_free(driver)

    with Driver(model) as driver:
        asyncio.run(run(driver))


@pytest.mark.parametrize(
    "copy_stream", [None, HandCopyStream(-1)], ids=["at once", "beside the steps"]
)
def test_idle_states_make_room_on_the_host_and_are_continued_from_there(
    model: Model, copy_stream: HandCopyStream | None
) -> None:
    async def run(driver: Driver) -> None:
        states = [await cache_state(driver, TEXT[i:]) for i in range(40)]
        cache_entries = driver.engine._states.cache
        assert cache_entries.on_device + cache_entries.on_host == 40
        assert cache_entries.on_host >= 32
        assert cached(states[0]).row < 0, "the least recently used went first"
        assert cached(states[-1]).row >= 0
        await driver.score(TEXT)
        row = model.network.layout.nbytes
        entries = {"host": cache_entries.on_host, "pool": cache_entries.on_device}
        reported = {tier: (states, states * row) for tier, states in entries.items()}
        await driver.until(lambda: driver.counts.tiers == reported)
        for i in random.Random(0).sample(range(40), 40):
            whole = await driver.score(TEXT[i:] + TEXT)
            assert same_state((await driver.score(TEXT, states[i])).state, whole.state)
        items = [SequenceInput(driver.ids(TEXT), state) for state in states]
        together = await driver.job(JobKind.SCORE, items, state_output=StateOutput.COPY).results()
        for i, state in enumerate(states):
            alone = await driver.score(TEXT, state)
            assert same_state(together[i][0].state, alone.state)
        drop(driver, *states)
        await all_free(driver)

    with Driver(model, limits(model, 8, 64), copy_stream) as driver:
        asyncio.run(run(driver))


def test_what_neither_tier_has_room_for_is_refused_by_name_and_the_server_continues(
    model: Model,
) -> None:
    async def run(driver: Driver) -> None:
        expected = await driver.score(TEXT)
        states = [await cache_state(driver, TEXT) for _ in range(6 + 4)]
        for _ in range(3):
            with pytest.raises(Overloaded, match="SRUSERVE_STATE_HOST_BYTES"):
                await cache_state(driver, TEXT)
        items = [SequenceInput(driver.ids(TEXT), state) for state in states]
        forks = await driver.job(JobKind.SCORE, items, state_output=StateOutput.COPY).results()
        assert len(forks) == 10
        assert same_state((await driver.score(TEXT)).state, expected.state)
        drop(driver, states.pop())
        states.append(await cache_state(driver, TEXT))
        drop(driver, *states)
        await all_free(driver)

    with Driver(model, limits(model, 8, 4)) as driver:
        asyncio.run(run(driver))


def test_a_failed_job_gives_the_room_back_that_it_was_promised(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    async def run(driver: Driver) -> None:
        start = await cache_state(driver, TEXT)
        with monkeypatch.context() as patch:
            patch.setattr("sruserve.model.network.Network.hidden", broken)
            for _ in range(9):
                submission = driver.job(
                    JobKind.SCORE,
                    [SequenceInput(driver.ids(TEXT), start)] * 3,
                    state_output=StateOutput.CACHED,
                )
                await asyncio.wait([submission.job.done])
        drop(driver, start)
        await all_free(driver)

    with Driver(model, limits(model, 16)) as driver:
        asyncio.run(run(driver))


def test_a_state_that_is_dropped_while_it_is_used_is_used_to_the_end(model: Model) -> None:
    async def run(driver: Driver) -> None:
        whole = await driver.score(TEXT + TEXT)
        for _ in range(5):
            state = await cache_state(driver, TEXT)
            submission = driver.job(
                JobKind.SCORE,
                [SequenceInput(driver.ids(TEXT), state)],
                state_output=StateOutput.COPY,
            )
            drop(driver, state, state)  # twice does no harm
            others = [driver.score(TEXT[i:], state_output=StateOutput.NONE) for i in range(5)]
            await asyncio.gather(*others)
            assert same_state((await submission.results())[0][0].state, whole.state)
            await all_free(driver)
            with pytest.raises(StateExpired):
                await driver.score(TEXT, state)

    with Driver(model, limits(model, 6, 4, max_batch_tokens=64)) as driver:
        asyncio.run(run(driver))


def test_a_state_of_which_nobody_heard_is_not_kept(model: Model) -> None:
    async def run(driver: Driver) -> None:
        for _ in range(20):
            submission = driver.job(
                JobKind.SCORE,
                [SequenceInput(driver.ids(TEXT))] * 4,
                state_output=StateOutput.CACHED,
            )
            while driver.engine._admission_queue.queued:  # without a turn of the event loop
                time.sleep(0.0001)
            submission.job.done.cancel()
            await asyncio.sleep(0)
        await all_free(driver)

        def refuse(*_: Any) -> None:
            raise RuntimeError("a bug in the edge")

        submission = driver.job(
            JobKind.SCORE, [SequenceInput(driver.ids(TEXT))], state_output=StateOutput.CACHED
        )
        submission.job.deliver = refuse
        with pytest.raises(RuntimeError, match="a bug in the edge"):
            await submission.results()
        await all_free(driver)

    with Driver(model) as driver:
        asyncio.run(run(driver))


def test_another_engines_state_is_refused(model: Model) -> None:
    async def run(one: Driver, other: Driver) -> None:
        state = await cache_state(one, TEXT)
        with pytest.raises(StateWrongModel):
            await other.score(TEXT, state)
        other.engine.drop(cached(state))
        assert (await one.score(TEXT, state)).tokens

    with Driver(model) as one, Driver(model) as other:
        asyncio.run(run(one, other))


def test_a_state_in_use_is_not_moved_away_and_one_that_moves_can_be_used_and_dropped(
    model: Model,
) -> None:
    async def run(driver: Driver, copy_stream: HandCopyStream) -> None:
        whole = await driver.score(TEXT + TEXT)
        cache_entries = driver.engine._states.cache
        copy_stream.allowed = len(copy_stream.copies)
        states = [await cache_state(driver, TEXT) for _ in range(10)]
        await driver.until(lambda: cache_entries._offloading > 0)
        moving = [state for state in states if cached(state) not in cache_entries._device]
        assert len(moving) >= 2
        (result,) = (
            await driver.job(JobKind.SCORE, [SequenceInput(driver.ids(TEXT), moving[0])]).results()
        )[0]
        assert isinstance(result, Scored)
        drop(driver, moving[1])
        using = driver.job(
            JobKind.SCORE,
            [SequenceInput(driver.ids(TEXT), moving[0])],
            state_output=StateOutput.COPY,
        )
        copy_stream.allowed = -1
        assert same_state((await using.results())[0][0].state, whole.state)
        await driver.until(lambda: cached(moving[1]).row == cached(moving[1]).host_row == -1)
        drop(driver, *states)
        await all_free(driver)

    with Driver(model, limits(model, 12, 20), copy_stream := HandCopyStream(-1)) as driver:
        asyncio.run(run(driver, copy_stream))


def test_no_stream_reads_what_another_left_in_a_row_or_in_host_memory(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, release_host = StatePool.release, HostRows.release

    @torch.inference_mode()  # as the engine's thread is; the event loop, which frees too, is not
    def poison(pool: StatePool, row: int) -> None:
        pool.rows[row] = torch.nan
        release(pool, row)

    @torch.inference_mode()
    def poison_host(host: HostRows, rows: list[int]) -> None:
        for row in rows:
            host[row].fill_(torch.nan)
        release_host(host, rows)

    monkeypatch.setattr(StatePool, "release", poison)
    monkeypatch.setattr(HostRows, "release", poison_host)

    async def run(driver: Driver) -> None:
        pick = random.Random(1)
        cached_states: list[tuple[str, Snapshot]] = []
        for _ in range(120):
            text, start = (
                pick.choice(cached_states) if cached_states and pick.random() < 0.8 else ("", None)
            )
            more = TEXT[pick.randrange(20) : pick.randrange(20, 60)]
            cached_states.append((text + more, await cache_state(driver, more, start)))
            if len(cached_states) > 20:
                drop(driver, cached_states.pop(pick.randrange(20))[1])
        for text, state in cached_states:
            again = (await driver.score("", state)).state
            whole = (await driver.score(text)).state
            assert again is not None
            assert whole is not None
            assert np.array_equal(again.row, whole.row)  # type: ignore[arg-type]
        assert not (await driver.score("")).state.row.any()  # type: ignore[union-attr]
        drop(driver, *(state for _, state in cached_states))
        await all_free(driver)

    for copy_stream in (None, HandCopyStream(-1)):
        with Driver(model, limits(model, 8, 32), copy_stream) as driver:
            asyncio.run(run(driver))


def test_where_the_host_has_less_memory_than_allowed_the_rest_is_refused(model: Model) -> None:
    async def run(driver: Driver) -> None:
        host = driver.engine._states.cache._host

        def none_left(rows: int, width: int) -> torch.Tensor:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

        host._allocate = none_left
        states: list[Snapshot] = []
        with contextlib.suppress(Overloaded):
            while len(states) < 40:
                states += [await cache_state(driver, TEXT)]
        assert 0 < len(states) < 8
        assert (await driver.score(TEXT)).tokens
        drop(driver, *states)
        await all_free(driver)
        assert (await driver.score(TEXT)).tokens

    with Driver(model, limits(model, 8, 100)) as driver:
        asyncio.run(run(driver))


def test_host_memory_that_runs_out_leaves_what_there_is_and_is_requested_again(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    class Short(InlineCopyStream):
        chunks = 1

        def allocate(self, rows: int, width: int) -> torch.Tensor:
            if not self.chunks:
                raise MemoryError("no more")
            self.chunks -= 1
            return super().allocate(rows, width)

    copy_stream, layout, clock = Short(), model.network.layout, HandClock()

    async def run(driver: Driver) -> None:
        states = [await cache_state(driver, TEXT[:20]) for _ in range(12)]
        jobs = [driver.score(TEXT, state_output=StateOutput.CACHED) for _ in range(6)]
        jobs += [driver.score(TEXT, state_output=StateOutput.NONE) for _ in range(20)]
        results = await asyncio.gather(*jobs)  # the chunk that is there is enough for all of them
        states += [result.state for result in results if result.state is not None]
        with contextlib.suppress(Overloaded):
            while len(states) < 40:
                states += [await cache_state(driver, TEXT[:20])]
        assert len(states) < 40
        assert "no host memory for more than 8 idle states: no more" in caplog.text
        assert await driver.score(TEXT, state_output=StateOutput.NONE)
        copy_stream.chunks = 100
        clock.now += 10
        states += [await cache_state(driver, TEXT[:20]) for _ in range(20)]
        drop(driver, *states)
        await all_free(driver)

    driver = Driver(model, limits(model, 16, 100), copy_stream)
    driver.engine._states.cache._host = HostRows(
        100, layout.width, copy_stream.allocate, chunk_bytes=8 * layout.nbytes, clock=clock
    )
    with driver:
        asyncio.run(run(driver))


def test_a_hundred_thousand_streams_are_kept_and_any_is_continued_as_if_never_stopped(
    tmp_path: Path,
) -> None:
    def memory() -> int:
        return malloc_bytes() + 64 * python_blocks()

    continue_all(random_model(tmp_path / "c", **CLASSIFIER), 100_000, memory)
