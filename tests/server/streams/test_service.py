"""The service below the routes: what other protocols ask of streams."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sruserve.server.auth import Tenant
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import (
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    ServeError,
    StateTooLarge,
    StepReused,
    StreamExists,
    StreamUnknown,
    WrongStep,
)
from sruserve.server.key_entries import KeyEntry
from sruserve.server.kserve.parameters import Sequence
from sruserve.server.kserve.sequences import _Step
from sruserve.server.offload import LONG_BYTES, POOL, THREADS
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.state.envelope import SealedStates
from sruserve.server.streams import service
from sruserve.server.streams import step as stream_step
from sruserve.server.streams.record import StreamRecord
from sruserve.server.streams.service import Streams
from sruserve.server.streams.step_view import StreamView
from sruserve.server.tasks.completion_request import CompletionRequest
from tests.server.conftest import CHARACTERS
from tests.server.streams.work import Run, settled, until_rows, write
from tests.support import save_random_model


def test_a_stream_may_have_a_given_id_which_is_free_again_when_it_has_ended(run: Run) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, name = catalogue.with_states("characters"), "m:42"
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
        served, name = catalogue.with_states("characters"), "m:43"
        await streams.create(served, None, name)
        await streams.step(served, name, None, b"a", write)
        await streams.step(served, name, None, b"b", write, last=True)
        with pytest.raises(StreamUnknown):
            await streams.describe(served.tenant, name)
        assert served.tenant.state_budget.used == 0
        await until_rows(served, 0)

    run(test)


def test_a_stream_keeps_as_few_checkpoints_as_its_steps_say(run: Run) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue.with_states("characters")
        record = await streams.create(served, None)
        for number in (1, 2, 3):
            await streams.step(served, record.id, number, b"a", write, checkpoints=1)
        assert (await streams.describe(served.tenant, record.id)).checkpoints == (3,)
        await until_rows(served, 1)
        await streams.delete(served.tenant, record.id)

    run(test)


def test_a_step_that_fails_after_its_state_is_there_leaves_nothing(run: Run) -> None:
    async def fail(view: StreamView) -> bytes:
        await write(view)
        raise RuntimeError("no reply can be made of it")

    async def nothing(_: StreamView) -> bytes:
        return b""

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue.with_states("characters")
        record = await streams.create(served, None)
        with pytest.raises(RuntimeError):
            await streams.step(served, record.id, 1, b"a", fail)
        with pytest.raises(InvalidRequest, match="nothing to compute"):
            await streams.step(served, record.id, 1, b"a", nothing)
        with pytest.raises(StreamUnknown):
            await streams.step(catalogue.with_states("other"), record.id, 1, b"a", write)
        await streams.step(served, record.id, 1, b"a", write)
        assert (await streams.describe(served.tenant, record.id)).step == 1
        await until_rows(served, 1)
        await streams.delete(served.tenant, record.id)
        await until_rows(served, 0)

    run(test)


def test_a_start_over_an_ended_stream_takes_its_place_in_the_quota(run: Run) -> None:
    tenant = Tenant("full", KeyEntry(key="full-key-123", state_bytes=1 << 20))

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, name = catalogue.with_states("characters").for_tenant(tenant), "m:44"
        await streams.create(served, None, name)
        await streams.step(served, name, 1, b"a", write, last=True)
        tenant.state_budget.limit = tenant.state_budget.used + 1024  # of its first state
        await streams.create(served, None, name)
        assert tenant.state_budget.used <= tenant.state_bytes
        await streams.delete(tenant, name)

    run(test)


def test_a_fork_whose_caller_leaves_at_the_very_end_is_undone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, store = catalogue.with_states("characters"), streams._store
        fork, made, ends = store.fork, list[StreamRecord](), asyncio.Event()

        async def noted(*args: Any) -> list[StreamRecord]:
            made.extend(await fork(*args))
            return made

        async def endless(*_: Any, **__: Any) -> None:
            ends.set()
            await asyncio.Event().wait()

        record = await streams.create(served, None)
        await streams.step(served, record.id, 1, b"a", write)
        with monkeypatch.context() as patch:
            patch.setattr(store, "fork", noted)
            patch.setattr(store, "release", endless)
            forking = asyncio.create_task(streams.fork(served, record.id, 3))
            await ends.wait()
        forking.cancel()
        await asyncio.wait([forking])
        await settled(streams)
        assert len(made) == 3
        for copy in made:
            with pytest.raises(StreamUnknown):
                await streams.describe(served.tenant, copy.id)
        await store.release(record, used=False)
        await streams.delete(served.tenant, record.id)
        await until_rows(served, 0)

    run(test)


def test_long_states_are_sealed_and_opened_beside_the_event_loop(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    width = LONG_BYTES // 4 + 8  # of a state in float32
    long = save_random_model(
        tmp_path / "long", vocabulary=CHARACTERS, hidden_size=width, num_layers=1
    )
    here: list[bool] = []

    def note(do: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **more: Any) -> Any:
            here.append(threading.current_thread().name.startswith("offload"))
            return do(*args, **more)

        return noted

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue.with_states("long")
        assert served.model.network.layout.nbytes > LONG_BYTES
        row = np.zeros(served.model.network.layout.width, np.float32)
        with monkeypatch.context() as patch:
            for name in ("seal", "open"):
                patch.setattr(SealedStates, name, note(getattr(SealedStates, name)))
            record = await streams.create(served, Snapshot(row, 1, pending=40, window=(40,)))
            _, token = await streams.token(served, record.id)
            place = Sequence("45", start=True, end=True, step=None)
            step = _Step(streams, served, b"a", place, write)
            await step.start(CompletionRequest(model="long", prompt="a", state=token))
        assert here
        assert all(here)
        await streams.delete(served.tenant, record.id)

    run(test, (long,))


def test_a_step_continues_when_its_caller_is_cancelled_and_one_that_waits_does_not(
    run: Run,
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, begun, goes_on = (
            catalogue.with_states("characters"),
            asyncio.Event(),
            asyncio.Event(),
        )

        async def slow(view: StreamView) -> bytes:
            begun.set()
            await goes_on.wait()
            return await write(view)

        record = await streams.create(served, None)
        running = asyncio.create_task(streams.step(served, record.id, 1, b"a", slow))
        await begun.wait()
        waiting = asyncio.create_task(streams.step(served, record.id, 2, b"b", write))
        await asyncio.sleep(0.05)
        running.cancel()
        waiting.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        unused = asyncio.create_task(served.in_flight.wait_idle())
        await asyncio.sleep(0.01)
        assert not unused.done(), "the model may be unloaded while it computes the step"
        goes_on.set()
        await asyncio.wait_for(unused, 60)
        stored = await streams.step(served, record.id, 1, b"a", write)
        assert (await streams.describe(served.tenant, record.id)).step == 1
        assert stored == await streams.step(served, record.id, 1, b"a", write)
        await streams.delete(served.tenant, record.id)

    run(test)


def test_a_caller_that_leaves_at_any_moment_keeps_no_stream(run: Run) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue.with_states("characters")
        record = await streams.create(served, None)
        await streams.step(served, record.id, 1, b"a", write)
        for moment in range(60):
            task: asyncio.Task[object] = asyncio.create_task(
                streams.token(served, record.id)
                if moment % 2
                else streams.rewind(served, record.id, 1)
            )
            await asyncio.sleep(moment * 5e-5)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            async with asyncio.timeout(60):
                await streams.token(served, record.id)
        await streams.delete(served.tenant, record.id)

    run(test)


class Input:
    """What a step reads."""


@pytest.mark.parametrize("leaves", [True, False])
def test_a_step_that_fails_without_its_client_lets_its_input_go(run: Run, leaves: bool) -> None:
    begun: list[tuple[asyncio.Future[bytes], weakref.ref[Input]]] = []

    async def fails(_: StreamView) -> bytes:
        inputs = Input()
        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        begun.append((done, weakref.ref(inputs)))
        return await done  # the future holds the error, and the error this frame

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue.with_states("characters")
        record = await streams.create(served, None)
        step = asyncio.create_task(streams.step(served, record.id, 1, b"a", fails))
        while not begun:
            await asyncio.sleep(0.001)
        if leaves:
            step.cancel()
            await asyncio.wait([step])
        done, inputs = begun.pop()
        done.set_exception(DeadlineExceeded())
        del done
        await settled(streams)
        if leaves:
            del step
            await asyncio.sleep(0)  # its waiters learn that it has ended
            assert inputs() is None
        else:
            with pytest.raises(DeadlineExceeded) as caught:
                await step
            assert any(each.name == "fails" for each in caught.traceback), "the log tells where"
        await streams.delete(served.tenant, record.id)

    gc.disable()
    try:
        run(test)
    finally:
        gc.enable()


@pytest.mark.parametrize("refusal", [StateTooLarge, Overloaded])
def test_a_state_is_not_copied_for_a_token_that_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch, refusal: type[ServeError]
) -> None:
    copied: list[Snapshot] = []

    async def copy(_: ServedModel, state: Snapshot) -> Snapshot:
        copied.append(state)
        return state

    def count(state: Snapshot) -> None:
        assert state.steps == 3
        raise Overloaded("the replies of others wait for their clients")

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue.with_states("characters")
        record = await streams.create(served, None)
        assert await streams.token(served, record.id, count) == (0, None)
        await streams.step(served, record.id, 1, b"a", write)
        monkeypatch.setattr(service, "export_state", copy)
        monkeypatch.setattr(served.states, "_fit", refusal is Overloaded)
        with pytest.raises(refusal):
            await streams.token(served, record.id, count)
        assert not copied
        monkeypatch.undo()
        await streams.delete(served.tenant, record.id)

    run(test)


@pytest.mark.parametrize("run", ["redis"], indirect=True)
def test_a_step_whose_end_fits_no_record_is_not_computed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue.with_states("characters")
        record = await streams.create(served, None)
        with monkeypatch.context() as patch:
            patch.setattr(served.states, "_fit", False)
            with pytest.raises(StateTooLarge):
                await streams.step(served, record.id, 1, b"a", never)
        await streams.step(served, record.id, 1, b"a", write)
        await streams.delete(served.tenant, record.id)

    run(test)


async def never(_: StreamView) -> bytes:
    raise AssertionError("the step is computed")


def test_the_content_of_a_client_that_has_left_is_not_hashed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed, free = list[bytes](), threading.Event()
    begun = list[None]()
    monkeypatch.setattr(stream_step, "_digest", hashed.append)

    def hold() -> None:
        begun.append(None)
        assert free.wait(60)

    class Gone:
        async def wait(self, done: asyncio.Future[Any]) -> None:
            done.cancel()
            await done

    async def talk() -> None:
        busy = [asyncio.create_task(POOL.run(hold, 0)) for _ in range(THREADS)]
        while len(begun) < THREADS:
            await asyncio.sleep(0.001)
        with pytest.raises(asyncio.CancelledError):
            await stream_step.digest_of(b"a" * (LONG_BYTES + 1), Gone())
        free.set()
        await asyncio.wait(busy)

    asyncio.run(asyncio.wait_for(talk(), 60))
    assert not hashed
