"""Open connections are bounded, idle ones give way, and one address leaves room for others."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection

from sruserve.server.app import Application
from sruserve.server.http.connections import Connections
from sruserve.server.http.uvicorn_http import HttpProtocol
from sruserve.server.websocket.uvicorn_websocket import WebSocketProtocol
from tests.server.conftest import Serve
from tests.server.hand_clock import HandClock
from tests.server.http.json_requests import connect
from tests.server.http.raw_replies import all_replies, next_reply, send
from tests.server.observing import metric, until
from tests.server.posting import SCORE, post
from tests.server.websocket.sockets import open_socket

MAX_CONNECTIONS = 20  # of one address half


@pytest.fixture(scope="module")
def running(serve: Serve) -> Iterator[tuple[httpx.Client, Application]]:
    with serve("characters", max_connections=MAX_CONNECTIONS) as running:
        yield running


def silent(client: httpx.Client, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection((client.base_url.host, client.base_url.port or 0))
    connection.settimeout(60)
    send(connection, data)
    return connection


@pytest.mark.parametrize("sent", [b"", b"GET /livez HT", b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_idle_connections_give_way_the_longest_idle_one_first(
    running: tuple[httpx.Client, Application], sent: bytes
) -> None:
    client, application = running
    client.close()
    with ExitStack() as stack:
        for _ in range(5 * MAX_CONNECTIONS):
            connection = stack.enter_context(silent(client, sent))
        newest = connection
        until(lambda: application.connections.open <= MAX_CONNECTIONS // 2)
        send(newest, b"\r\n\r\n" if not sent else b"")
        with httpx.Client(base_url=client.base_url, timeout=60) as other:
            for _ in range(3):
                assert other.get("/livez").status_code == 200
            assert post(other, SCORE, {"input": "a"}).status_code == 200
            assert metric(other, "sru_connections") > 0
            assert application.connections.open <= MAX_CONNECTIONS // 2


def test_clients_that_do_not_read_their_replies_give_way_to_others(
    running: tuple[httpx.Client, Application],
) -> None:
    client, application = running
    client.close()
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS // 2):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((client.base_url.host, client.base_url.port or 0))
            # More than the kernel takes of what nobody reads.
            send(connection, 30 * b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n")
        peers = application.connections._peers
        until(lambda: sum(len(peer.stuck) for peer in peers.values()) == MAX_CONNECTIONS // 2)
        with httpx.Client(base_url=client.base_url, timeout=60) as other:
            assert other.get("/livez").status_code == 200


def test_requests_whose_bodies_do_not_end_give_way_to_others(
    running: tuple[httpx.Client, Application],
) -> None:
    client, application = running
    client.close()
    unfinished = b"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS // 2):
            stack.enter_context(silent(client, unfinished))
        connections = application.connections
        peers = connections._peers.values()
        until(lambda: sum(len(peer.unfinished) for peer in peers) == MAX_CONNECTIONS // 2)
        until(lambda: all(peer.has_slow(connections._clock()) for peer in peers))
        with httpx.Client(base_url=client.base_url, timeout=60) as other:
            assert other.get("/livez").status_code == 200
            whole = json.dumps({"model": "characters", "input": "ab"}).encode()
            head = b"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
            with silent(other, head % len(whole) + whole[:9]) as slow:
                until(lambda: sum(len(peer.unfinished) for peer in peers) > 0)
                send(slow, whole[9:])
                assert b'"tokens"' in next_reply(slow)
    until(lambda: not connections.open)


def test_a_connection_that_waits_for_its_reply_does_not_give_way(serve: Serve) -> None:
    with serve("characters", max_connections=MAX_CONNECTIONS) as (client, application):
        engine = application.lifecycle.catalogue["characters"].engine
        long = {"model": "characters", "prompt": "a", "max_tokens": 100_000, "stream": True}
        with ExitStack() as stack:
            for _ in range(MAX_CONNECTIONS // 2 - 1):
                stack.enter_context(connect(client, "/v1/completions", long))
            until(lambda: engine.running == MAX_CONNECTIONS // 2 - 1)
            with silent(client) as last:
                until(lambda: application.connections.open == MAX_CONNECTIONS // 2)
                for _ in range(3):
                    with httpx.Client(base_url=client.base_url, timeout=60) as other:
                        assert other.get("/readyz").status_code == 200
                assert last.recv(1) == b""
            with connect(client, "/v1/completions", long):
                until(lambda: engine.running == MAX_CONNECTIONS // 2)
                with silent(client) as refused:
                    reply = all_replies(refused)
                assert reply.startswith(b"HTTP/1.1 429 ")
                assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"] == "overloaded"
            assert engine.running >= MAX_CONNECTIONS // 2 - 1
        until(lambda: application.connections.open == 0)


UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
)
METRICS = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"
CLOSING = {
    "socket without a key": UPGRADE,
    "bad request behind others": 3 * METRICS + b"?\r\n\r\n",
    "end behind others": METRICS * 3,
}


@pytest.mark.parametrize("last", CLOSING.values(), ids=CLOSING)
def test_a_closed_connection_whose_client_reads_nothing_gives_way(
    serve: Serve, last: bytes
) -> None:
    settings = {"max_connections": 2, "api_keys": "acme:" + "k" * 32}
    with serve("characters", **settings) as (client, application), ExitStack() as stack:
        connection = stack.enter_context(socket.socket())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((client.base_url.host, client.base_url.port))
        until(lambda: application.connections.open == 1)
        (place,) = application.connections._peers.values()
        (served,) = place.idle
        assert isinstance(served, HttpProtocol)
        transport = served.transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

        def ask() -> None:
            before = served.server_state.total_requests
            connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            until(lambda: served.server_state.total_requests > before)

        while not transport.get_write_buffer_size():
            ask()
        connection.sendall(last)
        if last.endswith(METRICS):
            connection.shutdown(socket.SHUT_WR)
        until(transport.is_closing)
        assert transport.get_write_buffer_size()
        assert client.get("/livez").status_code == 200


def test_a_handshake_that_fails_unforeseen_leaves_no_place(
    running: tuple[httpx.Client, Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, application = running
    client.close()
    monkeypatch.setattr(WebSocketProtocol, "handle_connect", None)
    with silent(client, UPGRADE) as connection:
        assert connection.recv(1) == b""
    until(lambda: application.connections.open == 0)


def test_sockets_leave_room_for_the_requests_of_their_address(serve: Serve) -> None:
    """All clients behind a proxy have its address, and sockets do not give way to requests."""
    with serve("characters", max_connections=8) as (client, _), ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(open_socket(client))
        with pytest.raises(InvalidStatus) as refused:
            open_socket(client)
        assert refused.value.response.status_code == 429
        assert client.get("/livez").status_code == 200


def open_with_key(client: httpx.Client, key: str) -> ClientConnection:
    return open_socket(client, additional_headers={"authorization": f"Bearer {key}"})


@pytest.mark.parametrize(
    ("keys", "max_sockets"),
    [("a:first-key", 4), ("a:first-key,a:second-key", 4), ("a:first-key,b:second-key", 2)],
)
def test_a_tenant_leaves_half_of_the_sockets_to_others_if_there_are_any(
    serve: Serve, keys: str, max_sockets: int
) -> None:
    with serve("characters", max_connections=16, api_keys=keys) as (client, application):
        for _ in range(2):
            with ExitStack() as stack:
                for _ in range(max_sockets):
                    stack.enter_context(open_with_key(client, "first-key"))
                with pytest.raises(InvalidStatus) as refused:
                    open_with_key(client, "first-key")
                assert refused.value.response.status_code == 429
                for _ in range(4 - max_sockets):
                    stack.enter_context(open_with_key(client, "second-key"))
            until(lambda: application.connections.open <= 1)


def test_two_tenants_leave_sockets_to_a_third(serve: Serve) -> None:
    keys = "a:first-key,b:second-key,c:third-key"
    with (
        serve("characters", max_connections=32, api_keys=keys) as (client, _),
        ExitStack() as stack,
    ):
        for key, sockets in (("first-key", 4), ("second-key", 2)):
            for _ in range(sockets):
                stack.enter_context(open_with_key(client, key))
            with pytest.raises(InvalidStatus) as refused:
                open_with_key(client, key)
            assert refused.value.response.status_code == 429
        stack.enter_context(open_with_key(client, "third-key"))


class Idle:
    closed = False

    def abort(self) -> None:
        self.closed = True


def test_when_all_addresses_together_have_too_many_the_one_with_most_gives_way() -> None:
    connections = Connections(9)
    opened: dict[str, list[Idle]] = {"a": [], "b": [], "c": []}
    for address in "aaaabbbcc":
        place = connections.add(address)
        assert place is not None
        idle = Idle()
        place.idle[idle] = None
        opened[address].append(idle)
    assert connections.add("d")
    assert [idle.closed for idle in opened["a"]] == [True, False, False, False]
    assert not any(idle.closed for idle in (*opened["b"], *opened["c"]))


def test_few_idle_connections_outlive_the_many_of_an_address_that_reads_nothing() -> None:
    connections = Connections(8)
    greedy, stuck = [connections.add("greedy") for _ in range(4)], Idle()
    assert greedy[0] is not None
    greedy[0].stuck[stuck] = None
    modest = [connections.add(f"modest {i}") for i in range(4)]
    idle = [Idle() for _ in modest]
    for place, connection in zip(modest, idle, strict=True):
        assert place is not None
        place.idle[connection] = None
    assert connections.add("another")
    assert stuck.closed
    assert not any(connection.closed for connection in idle)


def test_an_address_never_has_more_than_half_however_many_it_opens() -> None:
    connections = Connections(10)
    for _ in range(5):
        assert connections.add("greedy")
    assert not connections.add("greedy")
    assert all(connections.add(f"modest {i}") for i in range(4))


def test_all_addresses_of_one_ipv6_network_are_one() -> None:
    connections = Connections(4)
    assert connections.add("2001:db8::1")
    assert connections.add("2001:db8::2%eth0")
    assert not connections.add("2001:db8:0:0:ffff::3")
    assert connections.add("2001:db8:0:1::1")
    assert connections.add("::ffff:10.0.0.1")


def test_of_crowds_the_log_tells_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    connections = Connections(2)
    for _ in range(100):
        connections.add("a")
    assert caplog.text.count("SRUSERVE_MAX_CONNECTIONS") == 1


def test_what_waits_for_the_rest_of_a_body_gives_way_last_and_after_a_while() -> None:
    clock = HandClock()
    connections, gone = Connections(4, clock=clock), list[str]()
    peers = [connections.add(address) for address in ("a", "a", "b", "b")]

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def abort(self) -> None:
            gone.append(self.name)

    idle, first, second = map(Named, ("idle", "first", "second"))
    for peer in peers:
        assert peer is not None
    assert peers[0] is not None
    peers[0].idle[idle] = None
    for connection in (first, second):
        connections.wait_for_body(connection, peers[0])
        clock.now += 0.5
        connections.wait_for_body(connection, peers[0])  # the rest is still missing
    assert connections.add("c") is not None
    assert connections.add("c") is not None
    assert connections.add("d") is None  # the second one has waited for half a second
    clock.now += 0.5
    assert connections.add("d") is not None
    assert gone == ["idle", "first", "second"]
