"""Without keys, what one connection holds over gRPC takes nothing from another."""

import asyncio
from collections.abc import Iterator
from typing import Any, Self

import grpc
import httpx
import pytest

from sruserve.server.app import Application
from sruserve.server.errors import TooManyAtOnce
from sruserve.server.kserve.grpc.call import GrpcEndpoint
from sruserve.server.kserve.grpc.calls import ConcurrentCallLimit
from sruserve.server.kserve.grpc.reading import Reads
from sruserve.server.kserve.grpc.shares import Caller, CallShares, address_of
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
    there = RawClient(port(keyless), address="127.0.0.2")
    with RawClient(port(keyless)) as client, there as other:
        fill_with_slow_messages(client)
        for call in fill_with_slow_messages(other):
            other.send(call, message(question())[-1:], end=True)
            other.until(lambda call=call: call in other.ended)  # type: ignore[misc]
            assert other.ended[call].endswith(b"grpc-message\0")  # nothing is wrong


def test_without_keys_the_connections_of_an_address_leave_streams_for_others(
    keyless: tuple[httpx.Client, Application],
) -> None:
    first, second = (RawClient(port(keyless), address="127.0.0.2") for _ in range(2))
    with first, second:
        for _ in range(5):
            first.call(STREAM)
        first.until(lambda: bool(first.ended))  # the last one, so the others count
        calls = [second.call(STREAM) for _ in range(3)]
        second.until(lambda: bool(second.ended))
        assert list(second.ended) == [calls[-1]]
        assert b"SRUSERVE_GRPC_STREAMS" in second.ended[calls[-1]]
        assert len(stream(keyless)) == 2


def test_the_calls_of_an_address_take_turns_with_those_of_others() -> None:
    """However many connections it opens, which take turns among themselves."""

    async def run() -> None:
        order = list[str]()
        reads = Reads(1, 3600, CallShares(1, lambda: TooManyAtOnce("slow"), 0), 3600)

        class Recorded:
            def __init__(self, name: str) -> None:
                self.name = name

            async def read(self) -> bytes:
                order.append(self.name)
                await asyncio.sleep(0)
                return b"message"

        calls = [("crowd", 1), ("crowd", 1), ("crowd", 1), ("crowd", 2), ("crowd", 3), ("one", 4)]
        names = [(f"{client} {connection}", client) for client, connection in calls]
        await asyncio.gather(
            *(reads.read(Recorded(name), Caller(name, client)) for name, client in names)
        )
        assert order == ["crowd 1", "crowd 1", "one 4", "crowd 2", "crowd 3", "crowd 1"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.7:50123", "10.0.0.7"),
        ("ipv6:%5B2001:db8::1%5D:50123", "2001:0db8:0000:0000"),
        ("ipv6:[2001:db8::1]:50123", "2001:0db8:0000:0000"),
        ("unix:/tmp/socket", "unix:/tmp/socket"),
        ("somebody", "somebody"),
    ],
)
def test_a_client_is_its_address(peer: str, address: str) -> None:
    assert address_of(peer) == address


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
