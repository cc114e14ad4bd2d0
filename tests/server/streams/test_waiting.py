"""Requests that wait for a stream: they leave with their clients, and there are only so many."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from sruserve.server.auth import Tenant
from sruserve.server.budget import Hold
from sruserve.server.errors import Overloaded
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.streams.lease import LeaseManager
from sruserve.server.streams.record import StreamRecord
from sruserve.server.streams.service import Streams
from sruserve.server.streams.step_view import StreamView
from sruserve.server.tasks.limits import FREE_BYTES, InputLimits
from tests.server.conftest import Serve
from tests.server.held_steps import Steps
from tests.server.observing import until
from tests.server.streams.conftest import KEYS
from tests.server.streams.work import Run, write

STEPS_BY_ROUTE: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("GET", "state", {}),
    ("POST", "fork", {"n": 2}),
    ("POST", "rewind", {"step": 0}),
    ("DELETE", "", {}),
    ("POST", "steps", {"step": 2, "prompt": "a", "max_tokens": 1}),
)


class Endless:
    """A store with one stream of each name, of which `busy` looks find that another has it."""

    def __init__(self, busy: int = 0) -> None:
        self.busy, self.looks = busy, 0

    async def take(self, tenant: Tenant, stream_id: str, **_: bool) -> StreamRecord | None:
        self.looks += 1
        if self.looks <= self.busy:
            return None
        return StreamRecord(
            id=stream_id, tenant=tenant, model="m", seed=1, idle_seconds=60, created=0
        )

    async def release(self, record: StreamRecord, *, used: bool) -> None:
        pass


def send(client: httpx.Client, method: str, path: str, body: dict[str, Any]) -> socket.socket:
    """A raw connection on which a request has been sent."""
    content = json.dumps(body)
    head = f"{method} {path.rstrip('/')} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}"
    connection = socket.create_connection((client.base_url.host, client.base_url.port or 0))
    connection.sendall(f"{head}\r\n\r\n{content}".encode())
    return connection


@asynccontextmanager
async def busy(streams: Streams, served: ServedModel, stream: str) -> AsyncIterator[None]:
    """The time in which a stream is in a step."""
    begun, ends = asyncio.Event(), asyncio.Event()

    async def slow(view: StreamView) -> bytes:
        begun.set()
        await ends.wait()
        return await write(view)

    step = asyncio.create_task(streams.step(served, stream, None, b"slow", slow))
    await begun.wait()
    try:
        yield
    finally:
        ends.set()
        await step


def test_clients_that_leave_wait_for_no_stream(serve: Serve, steps: Steps) -> None:
    with serve("characters", state_keys=KEYS) as (client, application):
        stream = client.post("/v1/streams", json={}).json()["id"]
        waiting = application.streams._leases._waiting
        steps.hold(application)
        begun = {"step": 1, "prompt": "a", "max_tokens": 1}
        step = send(client, "POST", f"/v1/streams/{stream}/steps", begun)
        until(lambda: steps.waiting == 1)
        left = [
            send(client, method, f"/v1/streams/{stream}/{action}", body)
            for method, action, body in STEPS_BY_ROUTE * 4
        ]
        until(lambda: application.lifecycle.active == 1 + len(left) and waiting.used > 0)
        for connection in left:
            connection.close()
        until(lambda: waiting.used == 0 and application.lifecycle.active == 1)
        assert client.get(f"/v1/streams/{stream}").status_code == 200
        steps.go_on()
        step.close()


def test_a_line_has_only_so_many_places_for_whatever_is_asked(
    run: Run,
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        streams._leases._max_waiting = 2
        served = catalogue.with_states("characters")
        stream, other = [(await streams.create(served, None)).id for _ in range(2)]

        def requests_of_each_kind() -> list[Coroutine[Any, Any, Any]]:
            return [
                streams.token(served, stream),
                streams.fork(served, stream),
                streams.rewind(served, stream, 0),
                streams.delete(served.tenant, stream),
                streams.step(served, stream, None, b"a", write),
                streams.create(served, None, stream),
            ]

        async with busy(streams, served, stream):
            waiting = [asyncio.create_task(streams.token(served, stream)) for _ in range(2)]
            await asyncio.sleep(0)
            for each in requests_of_each_kind():
                with pytest.raises(Overloaded, match="wait for this stream"):
                    await each
            await streams.step(served, other, 1, b"a", write)
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            assert streams._leases._waiting.used == 0
            last = asyncio.create_task(streams.token(served, stream))
            await asyncio.sleep(0)
        assert (await last)[0] == 1, "there is room again"
        await streams.delete(served.tenant, stream)
        await streams.delete(served.tenant, other)

    run(test)


def test_forks_that_wait_for_their_stream_keep_no_other_fork_waiting(
    run: Run,
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue.with_states("characters")
        stream, other = [(await streams.create(served, None)).id for _ in range(2)]
        async with busy(streams, served, stream):
            waiting = [asyncio.create_task(streams.fork(served, stream, 256)) for _ in range(16)]
            await asyncio.sleep(0)
            async with asyncio.timeout(60):
                copies = await streams.fork(served, other, 16)
            assert not any(each.done() for each in waiting)
            for task in waiting[1:]:
                task.cancel()
            await asyncio.wait(waiting[1:])
        copies += await waiting[0]
        for stream_id in (stream, other, *(each.id for each in copies)):
            await streams.delete(served.tenant, stream_id)

    run(test)


def test_tenants_that_wait_at_many_streams_refuse_nobody_elses_requests() -> None:
    async def test() -> None:
        store: Any = Endless()
        lines = LeaseManager(1, tenants=3, min_share=4)
        busy, waiting = [], []
        for tenant in (Tenant("a"), Tenant("b")):
            busy += [await lines.take(store, tenant, str(name)) for name in range(5)]
            waiting += [
                asyncio.create_task(lines.take(store, tenant, str(name))) for name in range(4)
            ]
            await asyncio.sleep(0)
            with pytest.raises(Overloaded, match="SRUSERVE_MAX_QUEUE_BYTES"):
                await lines.take(store, tenant, "4")
            with pytest.raises(Overloaded, match="SRUSERVE_MAX_QUEUE_BYTES"):
                async with lines.alone(tenant, "4"):
                    pass
            async with await lines.take(store, tenant, "idle"), lines.alone(tenant, "new"):
                pass  # neither waits
        other = Tenant("c")
        async with await lines.take(store, other, "0"):
            after = asyncio.create_task(lines.take(store, other, "0"))
            await asyncio.sleep(0)
            assert not after.done()
        async with await after:
            pass
        for turn in busy:
            async with turn:
                pass
        for task in waiting:
            async with await task:
                pass
        assert lines._waiting.used == 0

    asyncio.run(test())


def test_what_other_replicas_have_is_waited_for_by_only_so_many() -> None:
    async def test() -> None:
        lines, tenant = LeaseManager(1, min_share=1), Tenant("a")
        store: Any = Endless(busy=1 << 30)
        waiting = asyncio.create_task(lines.take(store, tenant, "s"))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="wait for their streams"):
            await lines.take(store, tenant, "t")
        waiting.cancel()
        await asyncio.wait([waiting])
        assert lines._waiting.used == 0

    asyncio.run(test())


def test_a_stream_that_another_replica_has_for_long_is_looked_at_ever_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def test() -> None:
        store: Any = Endless(busy=60)
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "sleep", sleep)
            async with await LeaseManager(1 << 20).take(store, Tenant("a"), "s"):
                pass

    asyncio.run(test())
    assert waits[:6] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5]
    assert set(waits[6:]) == {0.5}
    assert len(waits) == 60


def test_a_step_that_begins_keeps_the_room_that_it_waited_with(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    count_body = InputLimits.count_body

    def see(limits: InputLimits, size: int) -> Hold:
        counted.append(size)
        return count_body(limits, size)

    monkeypatch.setattr(InputLimits, "count_body", see)
    text = "who is it " * 2000
    with serve("question") as (client, application):
        stream = client.post("/v1/streams", json={"model": "question"}).json()["id"]
        counted.clear()
        body = {"step": 1, "input": text}
        assert client.post(f"/v1/streams/{stream}/steps", json=body).status_code == 200
        tensor = {"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": [text]}
        body = {"inputs": [tensor], "parameters": {"sequence_id": 7, "sequence_start": True}}
        assert client.post("/v2/models/question/infer", json=body).status_code == 200
        assert len(counted) == 2, "each is counted once"
        assert min(counted) > FREE_BYTES
        until(lambda: application.limits.reading.used == 0)
