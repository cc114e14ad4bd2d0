"""A client's certificates cost the server little: while they are checked, and afterwards."""

import socket
import ssl
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tests.server.conftest import Serve
from tests.server.hand_clock import HandClock
from tests.server.http.raw_replies import next_reply
from tests.server.http.raw_requests import head
from tests.server.kserve.conftest import grpc_address
from tests.server.observing import until
from tests.server.tls.authority import Authority
from tests.server.tls.clients import HandTls, address, connect, context
from tests.server.tls.conftest import Running

METRICS = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"  # no probe


def with_more_certificates(authority: Authority, number: int) -> ssl.SSLContext:
    """The context of a client that sends further certificates with its own."""
    files = authority.settings("client")
    chain = authority.folder / f"chain-{number}.pem"
    with open(files["tls_cert"], "rb") as own:
        chain.write_bytes(own.read() + number * authority.file.read_bytes())
    trusting = context(authority)
    trusting.load_cert_chain(chain, files["tls_key"])
    return trusting


def status_of_metrics(client: httpx.Client, trusting: ssl.SSLContext) -> bytes:
    """The status that a client gets; none if its connection ends before it."""
    with suppress(OSError), connect(client, trusting) as connection:
        connection.sendall(METRICS)  # over TLS 1.3, a client's handshake ends before the server's
        return connection.recv(12)[9:]
    return b""


@pytest.mark.parametrize(("certificates", "status"), [(1, b"200"), (11, b"200"), (61, b"")])
def test_a_chain_is_read_unless_it_is_long(
    certified: Running, authority: Authority, certificates: int, status: bytes
) -> None:
    trusting = with_more_certificates(authority, certificates - 1)
    assert status_of_metrics(certified[0], trusting) == status


@pytest.mark.parametrize(("certificates", "counts"), [(2, False), (21, True)])
def test_a_chain_counts_while_its_connection_is_open_if_it_is_unusual(
    certified: Running, authority: Authority, certificates: int, counts: bool
) -> None:
    budget = certified[1].intake.budget
    until(lambda: budget.used == 0)
    trusting = with_more_certificates(authority, certificates - 1)
    with connect(certified[0], trusting) as connection:
        connection.sendall(METRICS)
        next_reply(connection)
        assert (budget.used > 0) == counts
    until(lambda: budget.used == 0)


def test_a_long_request_may_arrive_with_the_last_flight(
    certified: Running, authority: Authority
) -> None:
    body = b'{"model": "absent", "input": "%b"}' % (b"a" * 100_000)
    with socket.create_connection(address(certified[0]), 60) as connection:
        client = HandTls(connection, context(authority, "client"))
        client.tls.write(head(len(body)) + body)
        connection.sendall(client.outgoing.read())
        reply = client.receive()
    assert reply.startswith(b"HTTP/1.1 404 ")


def test_no_session_with_a_clients_certificates_is_kept(
    certified: Running, authority: Authority
) -> None:
    assert certified[1].certificates is not None
    server = certified[1].certificates.context
    own = context(authority, "client")
    own.options |= ssl.OP_NO_TICKET
    assert status_of_metrics(certified[0], own) == b"200"
    own.maximum_version = ssl.TLSVersion.TLSv1_2
    assert status_of_metrics(certified[0], own) == b""
    assert server.session_stats()["number"] == 0


def test_no_session_continues_without_a_look_at_its_clients_certificate(
    certified: Running, serve: Serve, authority: Authority
) -> None:
    assert not is_resumed(address(certified[0]), context(authority, "client"), METRICS)
    trusting, clock = context(authority, "client"), HandClock()
    trusting.set_alpn_protocols(["h2"])
    settings: dict[str, Any] = {
        "grpc_port": 0,
        **authority.settings(),
        "tls_client_ca": str(authority.file),
    }
    with serve("question", clock=clock, **settings) as (_, application):
        host, port = grpc_address(application).split(":")
        grpc = host, int(port)
        for seconds, resumed in ((60.0, False), (59.0, True)):
            assert is_resumed(grpc, trusting, b"", clock, seconds) == resumed


def is_resumed(
    server: tuple[str, int],
    trusting: ssl.SSLContext,
    request: bytes = b"",
    clock: HandClock | None = None,
    seconds: float = 0.0,
) -> bool:
    """Whether a second connection continues the session of the first, so much later on a clock."""
    session = None
    for number in range(2):
        if number and clock is not None:
            clock.now += seconds
        with (
            socket.create_connection(server, 60) as plain,
            trusting.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as connection,
        ):
            connection.sendall(request)
            assert connection.recv(65536)  # its session comes before
            session = connection.session
            reused = connection.session_reused
    return bool(reused)
