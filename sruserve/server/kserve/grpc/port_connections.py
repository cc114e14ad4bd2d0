"""The connections of gRPC's port, which its core keeps to itself: found by their descriptors."""

import asyncio
import logging
import os
import socket
from contextlib import suppress
from time import monotonic

from sruserve.server.http.connections import network_of
from sruserve.server.kernel_buffers import DESCRIPTORS, listeners_of_port, socket_of
from sruserve.server.kserve.grpc.connection_shares import Connection, ConnectionShares
from sruserve.server.kserve.grpc.syn_filter import ignore_networks

log = logging.getLogger("sruserve.server")

_LOOK_SECONDS = 0.25  # between two looks, and more for each descriptor
_LOOK_SECONDS_OF_DESCRIPTOR = 1 / 4096  # a look takes 2 to 3 µs for each
_LOOKED_IN_A_TURN = 256
_LOG_SECONDS = 60.0


class PortConnections:
    """Looks at the connections of a port now and then, and closes those beyond their shares.

    networks: of each open connection, the oldest first, nearly: the kernel counts sockets in
        batches on each processor.
    """

    def __init__(self, port: int, shares: ConnectionShares) -> None:
        self._port, self._shares = port, shares
        self._known: dict[int, int] = {}  # the inode of each descriptor
        self._logged = -_LOG_SECONDS
        self._ignored: tuple[str, ...] = ()
        self.networks: dict[Connection, str] = {}

    async def run(self) -> None:
        """Look until it is cancelled."""
        while True:
            seconds = len(self._known) * _LOOK_SECONDS_OF_DESCRIPTOR
            await asyncio.sleep(_LOOK_SECONDS + seconds)
            await self.look(monotonic())

    async def look(self, now: float) -> None:
        """Find what has been opened and closed since the last look, and close the excess."""
        await self._find()
        excess = self._shares.excess(self.networks, now)
        for connection in excess:
            self._close(connection)
        if excess and now - self._logged >= _LOG_SECONDS:
            self._logged = now
            log.warning(
                "more than %d gRPC connections are open: the newest ones of the address with the "
                "most are closed, and it opens no more for ten seconds; let its clients use fewer "
                "connections, or balance them over several workers",
                self._shares.max_shared,
            )
        if self._shares.ignored != self._ignored:
            self._ignored = self._shares.ignored
            for listener in listeners_of_port(self._port):
                with listener:
                    ignore_networks(listener, self._ignored)

    async def _find(self) -> None:
        known: dict[int, int] = {}
        new: list[Connection] = []
        names = os.listdir(DESCRIPTORS) if os.path.isdir(DESCRIPTORS) else []
        for begin in range(0, len(names), _LOOKED_IN_A_TURN):
            for descriptor in map(int, names[begin : begin + _LOOKED_IN_A_TURN]):
                with suppress(OSError):  # it is closed meanwhile
                    inode = known[descriptor] = os.fstat(descriptor).st_ino
                    if self._known.get(descriptor) != inode:
                        new.append(Connection(descriptor, inode))
            await asyncio.sleep(0)
        self._known = known
        self.networks = {
            connection: network
            for connection, network in self.networks.items()
            if known.get(connection.descriptor) == connection.inode
        }
        for connection in sorted(new, key=lambda each: each.inode):
            network = self._network(connection)
            if network:
                self.networks[connection] = network

    def _network(self, connection: Connection) -> str:
        """The network of the other end; an empty string if it is no connection of the port."""
        with suppress(OSError), socket_of(connection.descriptor) as each:
            is_tcp = each.family in (socket.AF_INET, socket.AF_INET6)
            if is_tcp and each.getsockname()[1] == self._port:
                return network_of(each.getpeername()[0])
        return ""

    def _close(self, connection: Connection) -> None:
        """End a connection; the core notices, and closes its descriptor."""
        with suppress(OSError), socket_of(connection.descriptor) as each:
            # the core may have closed it, and something else may have its descriptor now
            if os.fstat(each.fileno()).st_ino == connection.inode:
                each.shutdown(socket.SHUT_RDWR)
