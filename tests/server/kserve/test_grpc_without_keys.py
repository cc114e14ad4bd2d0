"""Without keys, what one connection holds over gRPC takes nothing from another."""

import asyncio
from collections.abc import Iterator
from typing import Any, Self

import grpc
import httpx
import pytest

from sruserve.server.app import Application
from sruserve.server.kserve.grpc.call import GrpcEndpoint
from sruserve.server.kserve.grpc.calls import ConcurrentCallLimit
from tests.server.conftest import Serve
from tests.server.kserve.grpc_inputs import INFER
from tests.server.kserve.grpc_limits import (
    LIMITS,
    STREAM,
    fill_with_slow_messages,
    infer,
    port,
    question,
    stream,
)
from tests.server.kserve.raw_http2 import RawClient, message


@pytest.fixture(scope="module")
def keyless(serve: Serve) -> Iterator[tuple[httpx.Client, Application]]:
    """A server for everybody, with four places for the calls of each connection."""
    with serve("question", **LIMITS | {"max_queue_bytes": 4 * 64 << 10}) as running:
        yield running


def test_without_keys_a_connection_whose_calls_fill_its_places_hurts_itself_alone(
    keyless: tuple[httpx.Client, Application],
) -> None:
    sent = message(question())
    with RawClient(port(keyless), window=0) as client:
        for _ in range(4):
            client.send(client.call(INFER), sent, end=True)  # its reply waits for the client
        refused = client.call(INFER)
        client.until(lambda: bool(client.ended))
        assert list(client.ended) == [refused]
        assert b"Exceeds maximum queue size" in client.ended[refused]
        assert infer(keyless) is None


def test_without_keys_a_connection_at_its_bound_of_streams_hurts_itself_alone(
    keyless: tuple[httpx.Client, Application],
) -> None:
    with RawClient(port(keyless)) as client:
        calls = [client.call(STREAM) for _ in range(5)]
        client.until(lambda: bool(client.ended))
        assert list(client.ended) == [calls[-1]]
        assert b"SRUSERVE_GRPC_STREAMS" in client.ended[calls[-1]]
        assert len(stream(keyless)) == 2


def test_without_keys_a_connection_at_its_bound_of_slow_messages_hurts_itself_alone(
    keyless: tuple[httpx.Client, Application],
) -> None:
    with RawClient(port(keyless)) as client, RawClient(port(keyless)) as other:
        fill_with_slow_messages(client)
        for call in fill_with_slow_messages(other):
            other.send(call, message(question())[-1:], end=True)
            other.until(lambda call=call: call in other.ended)  # type: ignore[misc]
            assert other.ended[call].endswith(b"grpc-message\0")  # nothing is wrong


class Idle:
    """A stream of one message; what it kept when the next one was asked for."""

    def __init__(self) -> None:
        self.freed = self.reads = 0

    async def read(self) -> Any:
        self.reads += 1
        if self.reads == 1:
            return Message(self)
        return grpc.aio.EOF

    async def write(self, _: object) -> None:
        assert not self.freed

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def peer(self) -> str:
        return "somebody"


class Message(bytes):
    """One that tells when it is gone, and how many reads there were then."""

    stream: Idle

    def __new__(cls, stream: Idle) -> Self:
        data = super().__new__(cls)
        data.stream = stream
        return data

    def __del__(self) -> None:
        self.stream.freed = self.stream.reads


def test_an_idle_stream_keeps_nothing_of_its_last_message(
    keyless: tuple[httpx.Client, Application],
) -> None:
    async def answer(data: bytes, context: Any, respond: Any) -> None:
        del data, context, respond

    async def serve(stream: Idle) -> None:
        lifecycle = keyless[1].lifecycle
        calls = ConcurrentCallLimit(keyless[1].settings, lifecycle)
        await calls.stream(GrpcEndpoint(STREAM, lifecycle.tenants), answer)(None, stream)

    asyncio.run(serve(stream := Idle()))
    assert (stream.reads, stream.freed) == (2, 1)
