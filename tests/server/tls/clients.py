"""Clients of a server with TLS."""

import socket
import ssl
from contextlib import suppress
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


class HandTls:
    """A client whose encrypted bytes a test sends when it likes, once its handshake is done.

    tls: writes to `outgoing`, which begins with the client's end of the handshake.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        self._connection, self._incoming = connection, ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self.outgoing, server_hostname="127.0.0.1")
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(self.outgoing.read())
                self._incoming.write(connection.recv(65536))

    def receive(self) -> bytes:
        """What the server has sent, at least something."""
        content = b""
        while not content:
            self._incoming.write(self._connection.recv(65536))
            with suppress(ssl.SSLWantReadError):
                while part := self.tls.read(65536):
                    content += part
        return content


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
