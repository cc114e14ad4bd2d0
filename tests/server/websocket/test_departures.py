"""Clients that vanish, do not read, or leave with more frames sent."""

import asyncio
import contextlib
import json
import os

import httpx
import pytest

from sruserve.server.app import Application
from tests.memory import malloc_bytes
from tests.server.conftest import Serve
from tests.server.observing import metric, until
from tests.server.websocket.raw_sockets import Raw, frame
from tests.server.websocket.talks import GENERATE, connected, next_frame, run


def test_a_client_that_vanishes_frees_all_that_it_used(
    client: httpx.Client, application: Application
) -> None:
    engine = application.lifecycle.catalogue.with_states("characters").engine

    async def talk() -> None:
        for _ in range(3):
            async with connected(client) as connection:
                await connection.send(json.dumps(GENERATE | {"max_tokens": 100_000}))
                await connection.send(json.dumps({"max_tokens": 100_000}))
                await next_frame(connection)
                connection.transport.abort()

    run(talk)
    until(lambda: engine.running == 0 and engine.rows == 0 and application.lifecycle.active == 0)
    until(lambda: metric(client, "sru_sockets") == 0)


def test_a_client_that_never_reads_is_made_to_wait_and_then_hung_up_on(serve: Serve) -> None:
    with serve("characters", keep_alive_seconds=1) as (client, application), Raw(client) as raw:
        engine = application.lifecycle.catalogue.with_states("characters").engine
        raw.received(b"\r\n\r\n")
        before = malloc_bytes()
        raw.socket.sendall(frame(b'{"model": "characters", "input": "a"}'))
        raw.socket.settimeout(0.5)
        flood = (frame(os.urandom(100), 9) + frame(b'{"op": "state"}')) * 500
        sent = 0
        with contextlib.suppress(OSError):  # it is not read, so it stops; then it is hung up on
            while sent < 64 << 20:
                sent += raw.socket.send(flood)
        assert sent < 32 << 20, "everything was taken"
        reply = client.post("/v1/score", json={"model": "characters", "input": "To be"})
        assert reply.status_code == 200
        assert malloc_bytes() - before < 32 << 20
        until(lambda: engine.rows == 0 and application.lifecycle.active == 0)


@pytest.mark.parametrize("more", [b"{}", b" " * 100_000], ids=["short frames", "long frames"])
def test_a_client_that_leaves_with_more_frames_sent_is_seen(
    client: httpx.Client, application: Application, more: bytes
) -> None:
    """More than the server takes before the first one is answered."""
    engine = application.lifecycle.catalogue.with_states("characters").engine

    async def talk() -> None:
        async with connected(client) as connection:
            await connection.send(json.dumps(GENERATE | {"max_tokens": 100_000}))
            await asyncio.to_thread(until, lambda: engine.running == 1)
            for _ in range(40):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(connection.send(more), 0.2)
            assert engine.running == 1
            connection.transport.abort()

    run(talk)
    until(lambda: engine.running == 0 and engine.rows == 0)
    until(lambda: application.lifecycle.active == 0)


def test_an_error_whose_client_has_left_is_no_fault_of_the_server(client: httpx.Client) -> None:
    """A fault alarms the operator. The socket closes while the last frames wait for their turns."""
    faults = 'sru_requests_total{model="unknown",outcome="error",route="/v1/stream"}'
    before = metric(client, faults)
    with Raw(client) as raw:
        raw.received(b"\r\n\r\n")
        raw.socket.sendall(frame(b"no JSON") * 200 + frame(b"", 8))
        raw.received(b"never")
    until(lambda: metric(client, "sru_sockets") == 0)
    assert metric(client, faults) == before
