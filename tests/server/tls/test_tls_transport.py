"""A client that asks TLS for answers, such as new keys, and reads none of them is cut off."""

import asyncio
import socket
import ssl
from typing import Any, cast

from sruserve.server.http.parse_turns import ParseTurns
from sruserve.server.http.tls_transport import TlsTransport

ANSWER = bytes(27)  # as long as that to a request for new keys


class Answering:
    """Stands for an `ssl.SSLObject` that answers each record itself, and finds no content."""

    def __init__(self, outgoing: ssl.MemoryBIO) -> None:
        self._outgoing = outgoing

    def read(self, size: int) -> bytes:
        del size
        self._outgoing.write(ANSWER)
        raise ssl.SSLWantReadError


async def ask(records: int, *, reads: bool) -> tuple[bool, int]:
    """Send records; return whether the connection is open at the end, and the most unsent bytes."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel takes little
        theirs.setblocking(False)
        plain, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        outgoing = ssl.MemoryBIO()
        tls = cast(ssl.SSLObject, cast(Any, Answering(outgoing)))
        transport = TlsTransport(
            plain, tls, ssl.MemoryBIO(), outgoing, asyncio.Protocol(), ParseTurns()
        )
        most = 0
        for _ in range(records):
            transport.data_received(b"x")
            most = max(most, plain.get_write_buffer_size())
            if plain.is_closing():
                break
            if reads:
                await loop.sock_recv(theirs, 1 << 16)
        is_open = not plain.is_closing()
        plain.abort()
        return is_open, most


def test_answers_that_a_client_does_not_read_end_its_connection() -> None:
    is_open, unsent = asyncio.run(ask(100_000, reads=False))
    assert not is_open
    assert unsent <= 4 << 10


def test_a_client_that_reads_them_may_ask_for_any_number() -> None:
    is_open, _ = asyncio.run(ask(1000, reads=True))
    assert is_open
