"""TLS loosens no bound: handshakes, silent clients, clients that do not read, stops."""

import asyncio
import json
import select
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import httpx
import pytest

from sruserve.server.http.connections import PeerConnections
from sruserve.server.http.parse_turns import ParseTurns
from sruserve.server.http.tls_transport import TlsTransport
from sruserve.server.http.uvicorn_http import HttpProtocol
from sruserve.server.tuning import Tuning
from tests.memory import grows_by_less, malloc_bytes
from tests.server.conftest import Leftovers, Serve
from tests.server.http.raw_replies import all_replies, next_reply, send
from tests.server.http.raw_requests import UPGRADE, code, frame, head
from tests.server.kserve.conftest import grpc_address
from tests.server.moved_time import MovedTime, moved_time
from tests.server.observing import until
from tests.server.posting import COMPLETE
from tests.server.tls.authority import Authority
from tests.server.tls.clients import HandTls, address, connect, context
from tests.server.tls.conftest import Running

GRACE, KEEP_ALIVE = 10, 75  # seconds
MAX_CONNECTIONS = 8  # of one address half
LONG = {"model": "characters", "prompt": "a", "max_tokens": 100_000, "stream": True}
LIVE = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture(scope="module")
def small(serve: Serve, authority: Authority) -> Iterator[Running]:
    """A server of few connections."""
    settings: dict[str, Any] = {"max_connections": MAX_CONNECTIONS, **authority.settings()}
    rate = 1 << 16
    with serve(
        "characters", receive_grace_seconds=GRACE, receive_bytes_per_second=rate, **settings
    ) as running:
        yield running


@pytest.fixture
def moved() -> Iterator[MovedTime]:
    """The time of the connections that a test makes."""
    with moved_time() as moved:
        yield moved


@pytest.fixture
def few(small: Running, moved: MovedTime) -> Running:
    """A server of few connections, whose clients have the time that a test moves."""
    del moved
    return small


@pytest.fixture
def hello(few: Running, authority: Authority) -> bytes:
    """The first flight of a client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context(authority).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def silent(client: httpx.Client, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(address(client), 60)
    send(connection, data)
    return connection


@pytest.mark.parametrize("length", [0, 3, 50, None], ids=["nothing", "3", "50", "a whole hello"])
def test_a_handshake_that_does_not_end_is_ended(
    few: Running, moved: MovedTime, hello: bytes, length: int | None
) -> None:
    until(lambda: few[1].connections.open == 0)
    with silent(few[0], hello[:length]) as connection:
        until(lambda: moved.waits(GRACE))
        moved.pass_time(GRACE - 1)
        assert few[1].connections.open == 1
        moved.pass_time(1)
        all_replies(connection)
    until(lambda: few[1].connections.open == 0)


def test_a_part_of_a_hello_counts_with_what_it_claims(few: Running, hello: bytes) -> None:
    client, application = few
    budget = application.intake.budget
    claims = b"\x16\x03\x01\x00\x08" + b"\x01" + (131_000).to_bytes(3, "big") + b"\x03\x03\x00\x00"
    with silent(client, claims):
        until(lambda: budget.used > 128 << 10)
    until(lambda: budget.used == 0)
    with silent(client, hello) as connection:
        assert connection.recv(1)
        until(lambda: budget.used == 0)  # a whole hello has its answer


def test_connections_without_a_handshake_count_and_give_way(few: Running, hello: bytes) -> None:
    client, application = few
    with ExitStack() as stack:
        for number in range(5 * MAX_CONNECTIONS):
            stack.enter_context(silent(client, hello if number % 2 else b""))
        until(lambda: application.connections.open <= MAX_CONNECTIONS // 2)
        with httpx.Client(base_url=client.base_url, verify=False, timeout=60) as other:
            assert other.get("/livez").status_code == 200
    until(lambda: application.connections.open == 0)


def test_handshakes_take_turns(few: Running, authority: Authority) -> None:
    turns = few[1].intake.turns
    before = turns.budget
    turns.budget = 0  # as if this turn had handled much
    try:
        with connect(few[0], context(authority)) as connection:
            connection.sendall(LIVE)
            assert next_reply(connection).startswith(b"HTTP/1.1 200 OK")
    finally:
        turns.budget = before


def test_records_of_a_byte_take_turns(
    encrypted: Running, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    decrypted = [0]  # in each turn
    begin, decrypt = ParseTurns._begin, TlsTransport._decrypt

    def begin_counted(turns: ParseTurns) -> None:
        decrypted.append(0)
        begin(turns)

    def decrypt_counted(transport: TlsTransport, data: bytes) -> None:
        decrypted[-1] += len(data)
        decrypt(transport, data)

    monkeypatch.setattr(ParseTurns, "_begin", begin_counted)
    monkeypatch.setattr(TlsTransport, "_decrypt", decrypt_counted)
    body = b'{"model": "absent", "input": "%b"}' % (b"a" * 30_000)
    with silent(encrypted[0]) as connection:
        client = HandTls(connection, context(authority))
        client.tls.write(head(len(body)))
        for byte in body:
            client.tls.write(bytes([byte]))
        connection.sendall(client.outgoing.read())
        assert client.receive().startswith(b"HTTP/1.1 404 ")
    assert sum(decrypted) > 20 * len(body)
    assert max(decrypted) <= 64 << 10


def in_records_of_a_byte(connection: socket.socket, client: HandTls, is_frame: bool) -> bytes:
    """The encrypted beginning of a body or of a frame, of which each byte is a record."""
    if is_frame:
        client.tls.write(UPGRADE)
        connection.sendall(client.outgoing.read())
        assert b" 101 " in client.receive()
    client.tls.write(frame(b"", 1 << 20) if is_frame else head(8_000_000))
    for _ in range(12_000):
        client.tls.write(b"a")
    return client.outgoing.read()


BEGINNINGS = pytest.mark.parametrize("is_frame", [False, True], ids=["body", "frame"])


def until_clients_have_left(running: Running) -> None:
    """Wait until only the connection of the fixture's own client is open."""
    client, application = running
    client.get("/livez")
    until(lambda: application.connections.open == 1)
    assert application.intake.budget.used == 0


@BEGINNINGS
def test_bytes_that_wait_to_be_decrypted_count(
    encrypted: Running, authority: Authority, monkeypatch: pytest.MonkeyPatch, is_frame: bool
) -> None:
    budget = encrypted[1].intake.budget
    until_clients_have_left(encrypted)
    held: list[tuple[asyncio.AbstractEventLoop, TlsTransport]] = []
    parse_more = TlsTransport.parse_more

    def hold(transport: TlsTransport) -> None:
        held.append((asyncio.get_running_loop(), transport))

    monkeypatch.setattr(TlsTransport, "parse_more", hold)
    with silent(encrypted[0]) as connection:
        client = HandTls(connection, context(authority))
        connection.sendall(in_records_of_a_byte(connection, client, is_frame))
        until(lambda: budget.used > 0 and bool(held))
        monkeypatch.undo()
        ((loop, transport),) = held
        loop.call_soon_threadsafe(parse_more, transport)
    until_clients_have_left(encrypted)


@BEGINNINGS
def test_bytes_that_find_no_room_to_wait_are_refused_with_an_answer(
    encrypted: Running, authority: Authority, is_frame: bool
) -> None:
    budget = encrypted[1].intake.budget
    until_clients_have_left(encrypted)
    with silent(encrypted[0]) as connection:
        client = HandTls(connection, context(authority))
        records, reply = in_records_of_a_byte(connection, client, is_frame), b""
        with budget.hold(budget.limit):
            send(connection, records)
            while b"overloaded" not in reply:
                reply += client.receive()
    until_clients_have_left(encrypted)


def test_a_slow_request_is_refused(few: Running, moved: MovedTime, authority: Authority) -> None:
    for begin in (head(100) + b"{", head(100_000) + b"a" * 20_000):
        with connect(few[0], context(authority)) as connection:
            connection.sendall(LIVE)
            next_reply(connection)  # the server, too, has ended the handshake
            connection.sendall(begin)
            until(lambda: moved.waits(GRACE))
            moved.pass_time(GRACE - 1)
            assert moved.waits(1)
            moved.pass_time(2)
            reply = all_replies(connection)
        assert reply.startswith(b"HTTP/1.1 408 ")
        assert code(reply) == "request_timeout"


def test_a_slow_frame_closes_its_socket(
    few: Running, moved: MovedTime, authority: Authority
) -> None:
    with connect(few[0], context(authority)) as connection:
        connection.sendall(UPGRADE)
        assert b" 101 " in connection.recv(4096)
        connection.sendall(frame(b"{", 100))
        until(lambda: moved.waits(GRACE))
        moved.pass_time(GRACE + 1)
        assert all_replies(connection).endswith(b"\x03\xf0request_timeout")  # 1008


@pytest.mark.parametrize("size", [1, 1 << 20], ids=["in bytes", "at once"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_that_arrive_with_the_handshake_are_answered(
    encrypted: Running, authority: Authority, version: ssl.TLSVersion, size: int
) -> None:
    trusting = context(authority)
    trusting.minimum_version = trusting.maximum_version = version
    with silent(encrypted[0]) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = HandTls(connection, trusting)
        client.tls.write(3 * LIVE)
        while client.outgoing.pending:  # first the end of the handshake
            connection.sendall(client.outgoing.read(size))
        text = b""
        while text.count(b"HTTP/1.1 200 OK") < 3:
            text += client.receive()


@pytest.mark.parametrize(
    ("server", "version"),
    [
        ("encrypted", ssl.TLSVersion.TLSv1_2),
        ("encrypted", ssl.TLSVersion.TLSv1_3),
        ("certified", ssl.TLSVersion.TLSv1_3),
    ],
)
@pytest.mark.parametrize("data", [LIVE, UPGRADE], ids=["request", "websocket"])
def test_a_request_with_a_last_flight_that_uses_up_the_turn_is_answered(
    request: pytest.FixtureRequest,
    authority: Authority,
    server: str,
    version: ssl.TLSVersion,
    data: bytes,
) -> None:
    client, application = request.getfixturevalue(server)
    trusting = context(authority)
    trusting.maximum_version = version
    with silent(client) as connection:
        hand = HandTls(connection, trusting)
        hand.tls.write(data)
        application.intake.turns.budget = 1  # as after other flights of this turn
        connection.sendall(hand.outgoing.read())
        assert hand.receive().startswith(b"HTTP/1.1 ")


def test_a_client_that_leaves_is_noticed_and_leaves_nothing_in_memory(
    encrypted: Running, authority: Authority, leftovers: Leftovers
) -> None:
    client, application = encrypted
    client.get("/livez")
    before = application.connections.open
    engine = application.lifecycle.catalogue["characters"].engine
    trusting = context(authority)
    body = json.dumps(LONG | {"stream": False}).encode()
    head = f"POST {COMPLETE} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    for notify in (True, False):
        connection = connect(client, trusting)
        connection.sendall(head + body)
        until(lambda: engine.running == 1)
        if notify:
            connection.setblocking(False)
            with suppress(ssl.SSLWantReadError):  # unless the server has answered meanwhile
                connection.unwrap()
            assert select.select([connection], [], [], 60)[0]  # the server closes
        connection.close()
        until(lambda: engine.running == 0 and application.connections.open == before)
    with connect(client, trusting) as connection:
        connection.sendall(UPGRADE)
        assert b" 101 " in connection.recv(4096)
    with silent(client):
        until(lambda: application.connections.open == before + 1)
    until(lambda: application.connections.open == before)
    until(lambda: application.lifecycle.active == 0)
    assert not leftovers()


def protocol_of(application: Any) -> HttpProtocol:
    """That of the only connection."""
    (place,) = application.connections._peers.values()
    assert isinstance(place, PeerConnections)
    (served,) = place.idle
    assert isinstance(served, HttpProtocol)
    return served


def test_a_client_that_does_not_read_holds_little_and_is_hung_up_on(
    serve: Serve, moved: MovedTime, authority: Authority
) -> None:
    settings: dict[str, Any] = {"keep_alive_seconds": KEEP_ALIVE, **authority.settings()}
    with serve("characters", **settings) as (client, application):
        client.close()
        with connect(client, context(authority)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            until(lambda: application.connections.open == 1)
            connection.sendall(LIVE)
            next_reply(connection)
            served = protocol_of(application)
            transport = served.transport
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            connection.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 16)
            until(lambda: served.flow.write_paused)
            sizes = [transport.get_write_buffer_size()]

            def stands_still() -> bool:  # the kernel has taken what it takes
                sizes.append(transport.get_write_buffer_size())
                return sizes[-2] == sizes[-1]

            until(stands_still)
            size = sizes[-1]
            assert 16 << 10 < size < 64 << 10
            assert transport.get_write_buffer_size() == size
            received = 0
            while received < size + (32 << 10):  # a part of what is left
                received += len(part := connection.recv(65536))
                assert part
            until(lambda: served.flow.write_paused)  # the client stands still from here on

            def is_hung_up_on() -> bool:
                moved.pass_time(1)
                return application.connections.open == 0

            until(is_hung_up_on)
            assert KEEP_ALIVE <= moved.now < 2 * KEEP_ALIVE


def test_an_idle_connection_keeps_no_memory_of_a_long_reply(
    encrypted: Running, authority: Authority
) -> None:
    client = encrypted[0]
    page = client.get("/openapi.json").content
    trusting = context(authority)
    with ExitStack() as stack:

        def open_20_and_read() -> None:
            for _ in range(20):
                connection = stack.enter_context(connect(client, trusting))
                connection.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n")
                assert next_reply(connection).endswith(page)

        assert len(page) > 100_000
        assert grows_by_less(20 * 100_000, malloc_bytes, open_20_and_read)


def test_a_refused_body_is_lingered_for_and_its_client_gets_the_reply(
    encrypted: Running, authority: Authority
) -> None:
    with silent(encrypted[0]) as connection:
        client = HandTls(connection, context(authority))
        client.tls.write(head(100_000_000))
        connection.sendall(client.outgoing.read())
        reply = client.receive()
        for _ in range(4):  # it would be reset if the server had closed it
            client.tls.write(b"a" * 100_000)
            connection.sendall(client.outgoing.read())
            assert encrypted[0].get("/livez").status_code == 200  # it has had its turns to close
        connection.shutdown(socket.SHUT_WR)
        all_replies(connection)
    assert reply.startswith(b"HTTP/1.1 413 ")


def test_a_stop_closes_every_kind_of_connection(
    serve: Serve, authority: Authority, hello: bytes
) -> None:
    with ExitStack() as stack:
        with serve("characters", **authority.settings()) as (client, application):
            trusting = context(authority)
            idle, socket_ = (
                stack.enter_context(connect(client, trusting, suppress_ragged_eofs=False))
                for _ in range(2)
            )
            idle.sendall(LIVE)
            next_reply(idle)
            socket_.sendall(UPGRADE)
            assert b" 101 " in socket_.recv(4096)
            shaking = stack.enter_context(silent(client, hello))
            assert shaking.recv(1)
            until(lambda: application.connections.open >= 3)
        assert idle.recv(1) == b""  # the end is authentic: without close_notify this would raise
        while socket_.recv(4096):
            pass
        all_replies(shaking)
    assert application.connections.open == 0


def test_grpc_ends_handshakes_and_bounds_connections(serve: Serve, authority: Authority) -> None:
    settings: dict[str, Any] = {"grpc_port": 0, **authority.settings()}
    impatient = Tuning(grpc_hello_seconds=1)
    with (
        serve("question", grpc_connections=4, tuning=impatient, **settings) as (_, application),
        ExitStack() as stack,
    ):
        host, port = grpc_address(application).split(":")
        connections = [
            stack.enter_context(socket.create_connection((host, int(port)), 60)) for _ in range(12)
        ]
        for connection in connections:
            all_replies(connection)
