"""Clients of a server with TLS."""

import socket
import ssl
from typing import Any

import httpx
from cryptography import x509

from tests.server.tls.authority import Authority


def context(authority: Authority, certificate: str = "") -> ssl.SSLContext:
    """A client's context, which trusts only the authority. certificate: the client's own."""
    context = ssl.create_default_context(cafile=authority.file)
    if certificate:
        files = authority.settings(certificate)
        context.load_cert_chain(files["tls_cert"], files["tls_key"])
    return context


def address(client: httpx.Client) -> tuple[str, int]:
    """Where an httpx client connects to."""
    return client.base_url.host, client.base_url.port or 0


def connect(client: httpx.Client, context: ssl.SSLContext, **options: Any) -> ssl.SSLSocket:
    """A raw encrypted connection."""
    connection = socket.create_connection(address(client))
    connection.settimeout(60)
    return context.wrap_socket(connection, server_hostname="127.0.0.1", **options)


def serial(connection: ssl.SSLSocket) -> int:
    """The serial number of the server's certificate."""
    data = connection.getpeercert(binary_form=True)
    assert data is not None
    return x509.load_der_x509_certificate(data).serial_number


def serial_at(port: int, authority: Authority) -> int:
    """The serial number that a new connection sees."""
    trusting = context(authority)
    trusting.set_alpn_protocols(["http/1.1", "h2"])
    with (
        socket.create_connection(("127.0.0.1", port), 60) as plain,
        trusting.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        return serial(connection)
