"""The service below the routes: what other protocols ask of streams."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sruserve.server.api.catalogue import Catalogue
from sruserve.server.api.served import Served
from sruserve.server.engine.jobs import Item, Job, Kind, Result, Sampling
from sruserve.server.errors import (
    InvalidRequest,
    StepReused,
    StreamExists,
    StreamUnknown,
    WrongStep,
)
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.settings import load_settings
from sruserve.server.streams.opening import open_streams
from sruserve.server.streams.service import Streams
from sruserve.server.streams.view import StreamView
from tests.server.streams.conftest import KEYS

Test = Callable[[Streams, Catalogue], Awaitable[None]]
Run = Callable[[Test], None]


@pytest.fixture(params=["memory", "redis"])
def run(request: pytest.FixtureRequest, folders: Path) -> Run:
    """`run(test)`: call it with streams and models, on an event loop of its own."""
    store = None
    if request.param == "redis":
        store = f"redis://127.0.0.1:{request.getfixturevalue('redis_port')}/6"

    async def serve(test: Test) -> None:
        chosen = (folders / "characters", folders / "other")
        settings = load_settings(
            model_folders=chosen, state_pool_bytes=1 << 20, store=store, state_keys=KEYS
        )
        lifecycle = Lifecycle(settings)
        streams = open_streams(settings, lifecycle.tenants)
        await lifecycle.start()
        await streams.start()
        try:
            await test(streams, lifecycle.catalogue)
        finally:
            await lifecycle.stop()
            await streams.stop()

    def in_thread(test: Test) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, serve(test)).result()

    return in_thread


async def write(view: StreamView) -> bytes:
    """Three letters behind what the stream has, or behind a first token."""
    results: list[Result] = []
    loop = asyncio.get_running_loop()
    given = np.array([] if view.start else [40], dtype=np.int64)
    job = Job(
        kind=Kind.GENERATE,
        items=[Item(given, view.start)],
        loop=loop,
        deliver=lambda _, result: results.append(result),
        done=loop.create_future(),
        sampling=Sampling(max_tokens=3, temperature=0),
    )
    view.submit(job)
    await job.done
    assert results[-1].state is None, "the state is the stream's"
    return repr(results).encode()


async def until_rows(served: Served, most: int) -> None:
    """Wait until so few states are in the engine, which frees them on its own thread."""
    async with asyncio.timeout(5):
        while served.engine.rows > most:
            await asyncio.sleep(0.01)


def test_a_stream_may_have_a_given_id_which_is_free_again_when_it_has_ended(run: Run) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, name = catalogue["characters"], "m:42"
        await streams.create(served, None, name)
        with pytest.raises(StreamExists):
            await streams.create(served, None, name)
        first = await streams.step(served, name, None, b"a", write)
        last = await streams.step(served, name, 2, b"b", write, last=True)
        assert await streams.step(served, name, 2, b"b", write, last=True) == last
        with pytest.raises(StepReused):
            await streams.step(served, name, 2, b"c", write)
        for number in (3, None):
            with pytest.raises(StreamUnknown):
                await streams.step(served, name, number, b"c", write)
        with pytest.raises(WrongStep):
            await streams.step(served, name, 4, b"c", write)
        with pytest.raises(StreamUnknown):
            await streams.fork(served, name)
        await streams.create(served, None, name)
        assert await streams.step(served, name, 1, b"a", write) == first
        await streams.delete(served.tenant, name)
        await until_rows(served, 0)

    run(test)


def test_a_stream_that_ends_without_a_number_is_forgotten(run: Run) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, name = catalogue["characters"], "m:43"
        await streams.create(served, None, name)
        await streams.step(served, name, None, b"a", write)
        await streams.step(served, name, None, b"b", write, last=True)
        with pytest.raises(StreamUnknown):
            await streams.describe(served.tenant, name)
        assert served.tenant.held_bytes == 0
        await until_rows(served, 0)

    run(test)


def test_a_stream_keeps_as_few_checkpoints_as_its_steps_say(run: Run) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue["characters"]
        held = await streams.create(served, None)
        for number in (1, 2, 3):
            await streams.step(served, held.id, number, b"a", write, checkpoints=1)
        assert (await streams.describe(served.tenant, held.id)).checkpoints == (3,)
        await until_rows(served, 1)
        await streams.delete(served.tenant, held.id)

    run(test)


def test_a_step_that_fails_after_its_state_is_there_leaves_nothing(run: Run) -> None:
    async def fail(view: StreamView) -> bytes:
        await write(view)
        raise RuntimeError("no reply can be made of it")

    async def nothing(_: StreamView) -> bytes:
        return b""

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue["characters"]
        held = await streams.create(served, None)
        with pytest.raises(RuntimeError):
            await streams.step(served, held.id, 1, b"a", fail)
        with pytest.raises(InvalidRequest, match="no step"):
            await streams.step(served, held.id, 1, b"a", nothing)
        with pytest.raises(StreamUnknown):
            await streams.step(catalogue["other"], held.id, 1, b"a", write)
        await streams.step(served, held.id, 1, b"a", write)
        assert (await streams.describe(served.tenant, held.id)).step == 1
        await until_rows(served, 1)
        await streams.delete(served.tenant, held.id)
        await until_rows(served, 0)

    run(test)


def test_a_step_goes_on_when_its_caller_is_cancelled_and_one_that_waits_does_not(run: Run) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, begun, goes_on = catalogue["characters"], asyncio.Event(), asyncio.Event()

        async def slow(view: StreamView) -> bytes:
            begun.set()
            await goes_on.wait()
            return await write(view)

        held = await streams.create(served, None)
        running = asyncio.create_task(streams.step(served, held.id, 1, b"a", slow))
        await begun.wait()
        waiting = asyncio.create_task(streams.step(served, held.id, 2, b"b", write))
        await asyncio.sleep(0.05)
        running.cancel()
        waiting.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        unused = asyncio.create_task(served.holders.gone())
        await asyncio.sleep(0.01)
        assert not unused.done(), "the model may be unloaded while it computes the step"
        goes_on.set()
        await asyncio.wait_for(unused, 5)
        stored = await streams.step(served, held.id, 1, b"a", write)
        assert (await streams.describe(served.tenant, held.id)).step == 1
        assert stored == await streams.step(served, held.id, 1, b"a", write)
        await streams.delete(served.tenant, held.id)

    run(test)


def test_a_caller_that_leaves_at_any_moment_keeps_no_stream(run: Run) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue["characters"]
        held = await streams.create(served, None)
        await streams.step(served, held.id, 1, b"a", write)
        for moment in range(60):
            asked: asyncio.Task[object] = asyncio.create_task(
                streams.token(served, held.id) if moment % 2 else streams.rewind(served, held.id, 1)
            )
            await asyncio.sleep(moment * 5e-5)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            async with asyncio.timeout(1):
                await streams.token(served, held.id)
        await streams.delete(served.tenant, held.id)

    run(test)
