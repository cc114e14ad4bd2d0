"""No address keeps others out of gRPC's port, however often it connects."""

import asyncio
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from sruserve.server.http.connections import network_of
from sruserve.server.kernel_buffers import socket_of
from sruserve.server.kserve.grpc import port_connections
from sruserve.server.kserve.grpc.connection_shares import Connection, ConnectionShares
from sruserve.server.kserve.grpc.port_connections import PortConnections
from sruserve.server.kserve.grpc.syn_filter import ignore_networks
from sruserve.server.tuning import Tuning
from tests.server.conftest import Serve
from tests.server.kserve.grpc_limits import LIVE, port
from tests.server.kserve.raw_http2 import RawClient
from tests.server.observing import until

CROWD, OTHER = "127.0.0.2", "127.0.0.3"


def opened(*crowds: tuple[str, int]) -> dict[Connection, str]:
    """Connections of addresses, one crowd after the other."""
    addresses = [address for address, size in crowds for _ in range(size)]
    return {Connection(number, 100 + number): each for number, each in enumerate(addresses)}


def test_a_lone_address_leaves_a_quarter_and_gives_up_its_newest_connections() -> None:
    shares = ConnectionShares(128)
    assert shares.excess(opened(("a", 96)), 0.0) == []
    assert not shares.ignored
    excess = shares.excess(opened(("a", 99)), 0.0)
    assert [each.descriptor for each in excess] == [98, 97, 96]
    assert shares.ignored == ("a",)


@pytest.mark.parametrize(
    ("sizes", "left"),
    [
        ((96, 1), (95, 1)),
        ((60, 40), (56, 40)),
        ((60, 60), (48, 48)),
        ((16,) * 8, (16,) * 8),  # an eighth each, which nobody has to give up
        ((17,) * 7, (16,) * 7),
        ((100, 20, 5), (71, 20, 5)),
    ],
)
def test_the_largest_address_gives_way_until_enough_is_free(
    sizes: tuple[int, ...], left: tuple[int, ...]
) -> None:
    connections = opened(*((str(number), size) for number, size in enumerate(sizes)))
    for each in ConnectionShares(128).excess(connections, 0.0):
        del connections[each]
    counts = [list(connections.values()).count(str(number)) for number in range(len(sizes))]
    assert sorted(counts, reverse=True) == list(left)


def test_an_address_that_opened_too_many_is_ignored_for_ten_seconds() -> None:
    shares = ConnectionShares(8)
    assert shares.excess(opened(("a", 7)), 100.0)
    for now, ignored in ((105.0, ("a",)), (109.9, ("a",)), (110.0, ())):
        assert shares.excess(opened(("a", 6)), now) == []
        assert shares.ignored == ignored


def test_a_small_limit_has_no_shares() -> None:
    for limit in (1, 2, 3):
        assert ConnectionShares(limit).excess(opened(("a", limit)), 0.0) == []


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        if address == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address, 0))
        listener.listen()
        yield listener


def is_let_in(port: int, source: str) -> bool:
    """Whether a connection opens at once, as it does on loopback."""
    target = "::1" if ":" in source else "127.0.0.1"
    with socket.socket(socket.AF_INET6 if ":" in source else socket.AF_INET) as client:
        client.bind((source, 0))
        client.setblocking(False)
        with suppress(BlockingIOError):
            client.connect((target, port))
        with suppress(OSError):
            return client.getpeername() is not None
        return False


def has_ipv6() -> bool:
    """Whether this machine has IPv6: its loopback address can be bound."""
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@pytest.mark.parametrize("address", ["127.0.0.1", "::"] if has_ipv6() else ["127.0.0.1"])
def test_the_kernel_ignores_new_connections_of_chosen_addresses_alone(address: str) -> None:
    with listening(address) as listener:
        sources = ["127.0.0.1", CROWD, OTHER] + ["::1"] * (address == "::")
        prefix = "::ffff:" if address == "::" else ""
        for ignored in ([], [CROWD], [CROWD, OTHER], ["::1"], ["2001:db8::1", OTHER], []):
            networks = [network_of(("." in each) * prefix + each) for each in ignored]
            ignore_networks(listener, networks)
            expected = [each for each in sources if each not in ignored]
            assert [
                each for each in sources if is_let_in(listener.getsockname()[1], each)
            ] == expected


def test_a_connection_outlives_what_the_kernel_ignores_later() -> None:
    with listening("127.0.0.1") as listener, socket.socket() as client:
        client.bind((CROWD, 0))
        client.connect(listener.getsockname())
        ignore_networks(listener, [CROWD])
        with listener.accept()[0] as accepted:
            client.sendall(b"a")
            accepted.settimeout(60)
            assert accepted.recv(1) == b"a"


def connected(listener: socket.socket, stack: ExitStack) -> None:
    """Connect once, and accept it."""
    stack.enter_context(socket.create_connection(listener.getsockname()))
    stack.enter_context(listener.accept()[0])


def test_a_look_opens_only_sockets_that_are_new_or_that_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[int] = []

    def noted(descriptor: int) -> socket.socket:
        opened.append(descriptor)
        return socket_of(descriptor)

    monkeypatch.setattr(port_connections, "socket_of", noted)
    with listening("127.0.0.1") as listener, ExitStack() as stack:
        found = PortConnections(listener.getsockname()[1], ConnectionShares(8))
        asyncio.run(found.look(0.0))
        for _ in range(8):
            connected(listener, stack)
        opened.clear()
        asyncio.run(found.look(1.0))  # two of eight give way, and no more may connect
        assert opened.count(listener.fileno()) == 1
        assert len(opened) < 8 * 2 + 10  # both ends of each connection, and a loop's own
        assert not is_let_in(listener.getsockname()[1], "127.0.0.1")


def test_a_look_that_finds_no_free_descriptor_is_not_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names, failed = os.listdir, list[str]()

    def listdir(folder: Any) -> list[str]:
        if not failed:
            failed.append(folder)
            raise OSError(errno.EMFILE, "too many open files")
        return names(folder)

    async def run(found: PortConnections) -> None:
        looking = asyncio.create_task(found.run())
        while not found.networks and not looking.done():
            await asyncio.sleep(0.01)
        looking.cancel()

    monkeypatch.setattr(os, "listdir", listdir)
    with listening("127.0.0.1") as listener, ExitStack() as stack:
        connected(listener, stack)
        found = PortConnections(listener.getsockname()[1], ConnectionShares(8))
        asyncio.run(run(found))
    assert failed
    assert found.networks


def test_silent_connections_of_one_address_keep_nobody_else_out(serve: Serve) -> None:
    limits = {"grpc_port": 0, "grpc_connections": 8, "keep_alive_seconds": 3600}
    patient = Tuning(grpc_hello_seconds=3600)
    with serve("question", tuning=patient, **limits) as running, ExitStack() as stack:
        silent = [stack.enter_context(socket.socket()) for _ in range(8)]
        for each in silent:
            each.bind((CROWD, 0))
            each.connect(("127.0.0.1", port(running)))
        served: list[RawClient] = []

        def are_served() -> bool:
            served.extend(clients(port(running), 2, stack))
            return bool(served)

        until(are_served, 45)  # the core itself closes such connections after a minute
        until(lambda: not is_let_in(port(running), CROWD))
        for client in served:
            call = client.call(LIVE)
            client.until(lambda client=client, call=call: call in client.ended)  # type: ignore[misc]


def clients(port: int, number: int, stack: ExitStack) -> list[RawClient]:
    """So many clients, or none if one is refused."""
    try:
        return [stack.enter_context(RawClient(port)) for _ in range(number)]
    except ConnectionError:
        return []
