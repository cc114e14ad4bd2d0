"""Limit the handshakes of a TLS port, and hand encrypted connections to HTTP."""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Hashable
from copy import copy
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from sruserve.server.errors import Overloaded
from sruserve.server.http.connections import Connections, PeerConnections
from sruserve.server.http.intake import BufferAccount, Intake
from sruserve.server.http.parse_queue import Waiting
from sruserve.server.http.probes_only import ProbesOnly
from sruserve.server.http.tls_transport import TlsTransport
from sruserve.server.http.uvicorn_http import HttpProtocol
from sruserve.server.tls.certificates import Certificates

log = logging.getLogger("sruserve.server")

# In units of `ParseTurns`: at least what a signature costs, which takes up to a millisecond.
_FLIGHT_COST = 8 << 10
_COST_PER_SECOND = _FLIGHT_COST * 1000
# What a client may send until its handshake ends: a hello and a chain of certificates, for which
# OpenSSL takes ten times as much memory as long as the connection is open.
_MAX_BYTES = 16 << 10
# OpenSSL allocates the length that the head of a message claims, up to 128 KiB, and buffers twice
# what it has received of it.
_PARTIAL_BYTES = 160 << 10


class TlsHandshake(asyncio.Protocol):
    """What uvicorn begins each connection of a TLS port with; `HttpProtocol` follows.

    A connection counts before its handshake, and gives way to new ones as idle ones do. All
    connections take turns, because each flight of a handshake may take a signature.

    cpu_clock: the processor time of this thread, in seconds.
    """

    _peer: PeerConnections | None = None
    _tls: ssl.SSLObject
    _timer: asyncio.TimerHandle
    _account: BufferAccount
    _received = b""  # waits for its turn
    _handled = 0  # bytes that OpenSSL has got
    _partial = 0  # bytes of a message that is not complete
    _certificates: Certificates
    waiting = Waiting.HEAD  # the owner of its requests is not known yet

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._cpu_clock = cpu_clock
        self._config, self._server_state, self._app_state = config, server_state, app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._intake: Intake = app_state["intake"]
        self._turns = self._intake.turns
        self._connections: Connections = app_state["connections"]
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

    @property
    def owner(self) -> Hashable:
        """The clients of the address."""
        return self._peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count a new connection, or refuse it if too many are open."""
        self._transport = cast(asyncio.Transport, transport)
        address = get_remote_addr(self._transport)
        self._peer = self._connections.add(address[0] if address else "")
        if self._peer is None:
            self._transport.abort()
            return
        self._peer.idle[cast(Any, self)] = None
        self._server_state.connections.add(cast(Any, self))
        self._account = BufferAccount(self._intake, self._peer)
        certificates: Certificates = self._app_state["certificates"]
        self._tls = certificates.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._timer = self._loop.call_later(self._intake.grace_seconds, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        """Handle a flight of the client, or wait for a turn."""
        if self._peer is None or self._transport.is_closing():
            return
        self._received += data
        if self._turns.budget > 0:
            self.parse_more()
            return
        try:
            self._account.count(len(self._received))
        except Overloaded:
            self._transport.abort()
        else:
            self._transport.pause_reading()
            self._turns.wait(cast(Any, self))

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def parse_more(self) -> None:
        """Take this connection's turn."""
        if self._transport.is_closing():
            return
        data, self._received = self._received, b""
        self._account.lower(0)
        room = _MAX_BYTES - self._handled
        data, rest = data[:room], data[room:]
        self._handled += len(data)
        self._incoming.write(data)
        try:
            self._do_handshake()
        except ssl.SSLWantReadError:
            if rest or not self._count_partial(len(data)):
                self._transport.abort()
                return
            self._answer()
            self._transport.resume_reading()
        except ssl.SSLError as error:
            # each client could fill the log
            log.debug("a TLS handshake failed: %s", error)
            self._answer()
            self._transport.close()
        else:
            self._answer()
            self._begin_http(rest)

    def _do_handshake(self) -> None:
        """Take the next step of the handshake, and charge this turn for its processor time."""
        begin = self._cpu_clock()
        try:
            self._tls.do_handshake()
        finally:
            cost = int((self._cpu_clock() - begin) * _COST_PER_SECOND)
            self._turns.spend(max(_FLIGHT_COST, cost), self.owner)

    def _count_partial(self, size: int) -> bool:
        """Count what OpenSSL holds of a message that is not complete; False: there is no room."""
        if self._outgoing.pending:  # the message was complete, and has an answer
            self._partial = 0
            return True
        self._partial += size
        try:
            self._account.count(_PARTIAL_BYTES + 2 * self._partial)
        except Overloaded:
            return False
        return True

    def _answer(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def _begin_http(self, rest: bytes) -> None:
        """Hand the connection over. rest: received bytes that OpenSSL has not got."""
        self._forget()
        unread = self._incoming.read()
        config = self._config
        if self._tls.context.verify_mode != ssl.CERT_NONE and not self._tls.getpeercert(True):
            config = copy(config)
            config.loaded_app = ProbesOnly(cast(Any, config.loaded_app))
        http = HttpProtocol(config, self._server_state, self._app_state, self._loop)
        encrypted = TlsTransport(
            self._transport, self._tls, self._incoming, self._outgoing, http, self._turns
        )
        self._transport.set_protocol(encrypted)
        self._transport.resume_reading()
        http.connection_made(cast(asyncio.Transport, encrypted))
        try:
            encrypted.count_handshake(self._handled - len(unread), self._intake)
        except Overloaded:
            self._transport.abort()
            return
        # A request may have arrived with the last flight. As received bytes, it waits for a turn if
        # the flight has used up this one.
        encrypted.data_received(unread + rest)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the place of a connection that has ended without a handshake."""
        del exc
        if self._peer is not None:
            self._forget()

    def _forget(self) -> None:
        assert self._peer is not None
        self._connections.remove(cast(Any, self), self._peer)
        self._peer = None
        self._timer.cancel()
        self._turns.forget(cast(Any, self))
        self._account.lower(0)
        self._server_state.connections.discard(cast(Any, self))

    def shutdown(self) -> None:
        """Close, because the server stops."""
        self._transport.abort()
