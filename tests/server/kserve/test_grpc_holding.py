"""What one client holds over gRPC, with a key or without, takes nothing from another."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sruserve.server.app import Application
from sruserve.server.kserve.grpc import probes
from sruserve.server.kserve.grpc import server as grpc_server
from sruserve.server.kserve.grpc.service import SERVICE as NAME
from tests.server.conftest import Serve
from tests.server.kserve.conftest import grpc_address
from tests.server.kserve.grpc_inputs import INFER
from tests.server.kserve.grpc_limits import (
    ACME,
    CHECK,
    LABS,
    LATE,
    LIMITS,
    LIVE,
    LONG,
    READS,
    READY,
    STREAM,
    UNREAD,
    WATCH,
    flood,
    infer,
    inferences,
    port,
    question,
    stream,
)
from tests.server.kserve.raw_http2 import MAX_CONCURRENT_STREAMS, RawClient, message, unfinished
from tests.server.observing import until

KEYS = f"acme:{ACME},labs:{LABS}"


@pytest.fixture(scope="module")
def keyed(serve: Serve) -> Iterator[tuple[httpx.Client, Application]]:
    """A server that waits for the messages of probes as long as it has room for them."""
    with serve("question", api_keys=KEYS, **LIMITS) as running:
        assert running[1].grpc is not None
        running[1].grpc.probes.reads.seconds = 3600
        yield running


@pytest.fixture(scope="module")
def impatient(serve: Serve) -> Iterator[tuple[httpx.Client, Application]]:
    """A server whose clients may be idle for a second."""
    with serve("question", api_keys=KEYS, keep_alive_seconds=1, **LIMITS) as running:
        yield running


@pytest.fixture
def raw(keyed: tuple[httpx.Client, Application]) -> Iterator[RawClient]:
    """A client that sends what it likes."""
    with RawClient(port(keyed)) as client:
        yield client


@pytest.mark.parametrize("method", [INFER, STREAM, "/inference.GRPCInferenceService/ModelConfig"])
def test_without_a_key_no_message_is_read_and_no_call_stays_open(
    raw: RawClient, method: str
) -> None:
    assert flood(raw, method, 20) <= 20 * UNREAD
    assert all(b"needs an API key" in end for end in raw.ended.values())


@pytest.mark.parametrize("method", [CHECK, "/inference.GRPCInferenceService/ModelReady"])
def test_probes_hold_few_messages_and_none_for_long(
    monkeypatch: pytest.MonkeyPatch,
    keyed: tuple[httpx.Client, Application],
    raw: RawClient,
    method: str,
) -> None:
    assert keyed[1].grpc is not None
    monkeypatch.setattr(keyed[1].grpc.probes.reads, "seconds", probes._READ_SECONDS)
    assert flood(raw, method, 40) <= 8 * LONG + 16 * UNREAD


def test_unfinished_messages_of_a_tenant_hold_no_more_than_a_part_of_the_queue(
    raw: RawClient,
) -> None:
    received_bytes = flood(raw, INFER, 30, ACME, still_open=READS // 2)  # they may take seconds yet
    assert received_bytes <= (READS + READS // 2) * LONG + 30 * UNREAD


def test_a_probe_that_says_nothing_is_answered_before_its_message(raw: RawClient) -> None:
    calls = [raw.call(LIVE), raw.call(READY)]
    raw.until(lambda: set(calls) <= set(raw.ended))


def test_a_connection_that_is_full_of_probes_keeps_nobody_elses_waiting(
    keyed: tuple[httpx.Client, Application], raw: RawClient
) -> None:
    with grpc.insecure_channel(grpc_address(keyed[1])) as channel:
        for call in [raw.call(CHECK) for _ in range(50)]:
            raw.send(call, unfinished(LONG))
        health = health_pb2_grpc.HealthStub(channel)
        status = health.Check(health_pb2.HealthCheckRequest(), timeout=60).status
    assert status == health_pb2.HealthCheckResponse.SERVING
    raw.until(lambda: len(raw.ended) >= 50 - 4)
    assert all(b"too many probes" in end for end in raw.ended.values())


def test_a_probe_waits_for_none_of_the_silent_ones_of_any_number_of_connections(
    serve: Serve,
) -> None:
    with serve("question", **LIMITS) as running, ExitStack() as stack:
        assert running[1].grpc is not None
        running[1].grpc.probes.reads.seconds = 3600
        clients = [stack.enter_context(RawClient(port(running))) for _ in range(30)]
        for client in clients * 10:
            client.call(CHECK)
        with grpc.insecure_channel(grpc_address(running[1])) as channel:
            for _ in range(20):
                health = health_pb2_grpc.HealthStub(channel)
                status = health.Check(health_pb2.HealthCheckRequest(), timeout=60).status
                assert status == health_pb2.HealthCheckResponse.SERVING


def test_calls_that_lack_the_key_take_no_place_of_those_that_have_it(
    keyed: tuple[httpx.Client, Application], raw: RawClient
) -> None:
    for _ in range(200):
        raw.call(STREAM)
    raw.until(lambda: len(raw.ended) == 200)
    assert infer(keyed, LABS) is None


def test_a_tenant_at_its_bound_of_streams_hurts_itself_alone(
    keyed: tuple[httpx.Client, Application], raw: RawClient
) -> None:
    calls = [raw.call(STREAM, ACME) for _ in range(5)]
    raw.until(lambda: bool(raw.ended))
    assert list(raw.ended) == [calls[-1]]
    assert b"SRUSERVE_GRPC_STREAMS" in raw.ended[calls[-1]]
    assert infer(keyed, ACME) is None  # a stream takes no place of another call
    assert len(stream(keyed, LABS)) == 2


def test_a_tenant_whose_silent_calls_fill_its_places_hurts_itself_alone(
    keyed: tuple[httpx.Client, Application], raw: RawClient
) -> None:
    places = READS * LONG // (64 << 10)
    calls: list[int] = []

    def refused() -> list[int]:
        # some of them may have been slow, and have ended, before the last ones have begun
        if not calls or len(raw.ended) >= len(calls) // 2:
            calls.extend(raw.call(INFER, ACME) for _ in range(places + 1))
        return [call for call in calls if b"Exceeds maximum queue size" in raw.ended.get(call, b"")]

    raw.until(lambda: bool(refused()))
    assert infer(keyed, LABS) is None
    last = raw.call(INFER, ACME)
    raw.until(lambda: last in raw.ended)  # by now all of the calls have begun, in any order
    assert len(calls) - len(refused()) >= places


def test_a_stream_that_is_idle_for_too_long_ends_with_a_reason(
    impatient: tuple[httpx.Client, Application],
) -> None:
    ended = threading.Event()

    def requests() -> Iterator[bytes]:
        yield question()
        ended.wait(60)

    with grpc.insecure_channel(grpc_address(impatient[1])) as channel:
        metadata = (("authorization", f"Bearer {ACME}"),)
        call = channel.stream_stream(STREAM)(requests(), metadata=metadata)
        assert next(call)
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        ended.set()
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert caught.value.details() == LATE.format(1)


@pytest.mark.parametrize("method", [INFER, STREAM])
def test_a_slow_message_has_the_time_that_the_operator_gives(serve: Serve, method: str) -> None:
    limits = LIMITS | {"receive_grace_seconds": 0.25, "receive_bytes_per_second": 4 * LONG}
    with serve("question", **limits) as running, RawClient(port(running)) as client:
        call = client.call(method)
        client.send(call, message(question())[:-1])
        client.until(lambda: bool(client.ended))
        assert LATE.format(0.5).encode() in client.ended[call]
        assert b"grpc-status\x014" in client.ended[call]  # DEADLINE_EXCEEDED


def test_a_call_has_its_place_until_its_reply_is_taken(serve: Serve) -> None:
    limits = LIMITS | {"max_queue_bytes": 2 * 64 << 10}
    with (
        serve("question", **limits) as running,
        RawClient(port(running), window=0) as client,
    ):
        sent = message(question())
        answered = [client.call(INFER) for _ in range(2)]
        for call in answered:
            client.send(call, sent, end=True)
        until(lambda: inferences(running[0]) == 2 and running[1].lifecycle.active == 0)
        client.send(client.call(INFER), sent, end=True)
        client.until(lambda: bool(client.ended))
        (refused,) = client.ended
        assert b"Exceeds maximum queue size" in client.ended[refused]
        for call in answered:
            client.open_window(call)
        client.until(lambda: len(client.ended) == 3)
        again = client.call(INFER)
        client.send(again, sent, end=True)
        client.open_window(again)
        client.until(lambda: again in client.ended)
        assert client.ended[again].endswith(b"grpc-message\0")  # nothing is wrong


def test_watchers_are_few_over_one_connection_and_others_have_room(
    keyed: tuple[httpx.Client, Application], raw: RawClient
) -> None:
    calls = []
    for _ in range(9):
        calls.append(raw.call(WATCH))
        raw.send(calls[-1], message(b""))  # at once: few probes may be silent at a time
    raw.until(lambda: bool(raw.ended))
    assert list(raw.ended) == [calls[-1]]
    assert b"too many probes" in raw.ended[calls[-1]]
    with grpc.insecure_channel(grpc_address(keyed[1])) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()


@pytest.mark.parametrize("method", [CHECK, WATCH, "/inference.GRPCInferenceService/ModelReady"])
def test_a_probes_message_is_short(raw: RawClient, method: str) -> None:
    short, long = (field_of(size) for size in (1024, 1025))
    calls = [raw.call(method) for _ in range(2)]
    for call, data in zip(calls, (short, long), strict=True):
        raw.send(call, message(data), end=True)
    raw.until(lambda: calls[1] in raw.ended)
    assert b"a probe's message may have at most 1024 bytes" in raw.ended[calls[1]]
    if method != WATCH:
        raw.until(lambda: calls[0] in raw.ended)
    assert b"bytes" not in raw.ended.get(calls[0], b"")


def field_of(size: int) -> bytes:
    """A message of so many bytes whose first field is a text, as all probes' messages have it."""
    data = bytes(health_pb2.HealthCheckRequest(service="x" * (size - 3)).SerializeToString())
    assert len(data) == size
    return data


def test_a_watch_parses_its_message_once(
    monkeypatch: pytest.MonkeyPatch, keyed: tuple[httpx.Client, Application]
) -> None:
    parsed: list[bytes] = []

    def parse(kind: Any, data: bytes) -> Any:
        parsed.append(data)
        return kind.FromString(data)

    monkeypatch.setattr(grpc_server, "parse", parse)
    request, serving = health_pb2.HealthCheckRequest(service=NAME), health_pb2.HealthCheckResponse
    lifecycle = keyed[1].lifecycle
    with grpc.insecure_channel(grpc_address(keyed[1])) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=60)
        assert next(watch).status == serving.SERVING
        lifecycle.draining = True
        try:
            assert next(watch).status == serving.NOT_SERVING
        finally:
            lifecycle.draining = False
        assert next(watch).status == serving.SERVING
        watch.cancel()
    assert parsed == [request.SerializeToString()]


@pytest.mark.parametrize(("streams", "calls"), [(64, 128), (500, 500)])
def test_others_wait_for_few_calls_of_a_connection(serve: Serve, streams: int, calls: int) -> None:
    with (
        serve("question", grpc_port=0, grpc_streams=streams) as running,
        RawClient(port(running)) as client,
    ):
        assert client.settings[MAX_CONCURRENT_STREAMS] == calls


def test_connections_without_a_call_are_closed(
    impatient: tuple[httpx.Client, Application],
) -> None:
    with RawClient(port(impatient)) as raw:
        raw.until(lambda: raw.closed)


def test_connections_have_a_bound(serve: Serve) -> None:
    with serve("question", grpc_port=0, grpc_connections=2) as running, RawClient(port(running)):
        with RawClient(port(running)), pytest.raises(ConnectionError):
            RawClient(port(running))
        until(lambda: connects(port(running)))


def connects(port: int) -> bool:
    try:
        with RawClient(port):
            return True
    except ConnectionError:
        return False


@pytest.mark.parametrize("streams", [1, 3])
def test_a_stream_whose_replies_are_not_read_waits_with_one_of_them(
    serve: Serve, streams: int
) -> None:
    requests = 20
    with (
        serve("question", **LIMITS) as running,
        RawClient(port(running), window=0) as client,
        RawClient(port(running)) as other,
    ):
        calls = [client.call(STREAM) for _ in range(streams)]
        for call in calls:
            client.send(call, requests * message(question()), end=True)
        until(lambda: inferences(running[0]) == streams)
        for _ in range(10):  # whatever would be answered, is answered before these probes
            probe = other.call(LIVE)
            other.until(lambda probe=probe: probe in other.ended)  # type: ignore[misc]
        assert inferences(running[0]) == streams
        assert running[1].lifecycle.active == 0
        for call in calls:
            client.open_window(call)
        client.until(lambda: set(calls) <= set(client.ended))
        assert inferences(running[0]) == streams * requests
