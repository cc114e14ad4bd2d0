"""The connections of gRPC's port, which its core keeps to itself: found by their descriptors."""

import asyncio
import logging
import math
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from sruserve.server.http.connections import network_of
from sruserve.server.kernel_buffers import DESCRIPTORS, socket_of
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
    clock: monotonic seconds.
    """

    def __init__(
        self, port: int, shares: ConnectionShares, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._port, self._shares, self._clock = port, shares, clock
        self._known: dict[int, int] = {}  # the inode of each descriptor
        self._listeners: list[Connection] = []
        self._logged = -math.inf
        self._ignored: tuple[str, ...] = ()
        self.networks: dict[Connection, str] = {}

    async def run(self) -> None:
        """Look until it is cancelled."""
        while True:
            seconds = len(self._known) * _LOOK_SECONDS_OF_DESCRIPTOR
            await asyncio.sleep(_LOOK_SECONDS + seconds)
            with suppress(OSError):  # no descriptor is left to list them now
                await self.look(self._clock())

    async def look(self, now: float) -> None:
        """Find what has been opened and closed since the last look, and close the excess."""
        await self._find()
        excess = self._shares.excess(self.networks, now)
        for connection in excess:  # the core notices, and closes its descriptor
            _change(connection, lambda each: each.shutdown(socket.SHUT_RDWR))
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
            for listener in self._listeners:
                _change(listener, partial(ignore_networks, networks=self._ignored))

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
            self._add(connection)

    def _add(self, connection: Connection) -> None:
        """Keep a descriptor if it is a connection or a listener of the port."""
        with suppress(OSError), socket_of(connection.descriptor) as each:
            is_tcp = each.family in (socket.AF_INET, socket.AF_INET6)
            if not is_tcp or each.getsockname()[1] != self._port:
                return
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                self._listeners.append(connection)
            else:
                self.networks[connection] = network_of(each.getpeername()[0])


def _change(connection: Connection, change: Callable[[socket.socket], object]) -> None:
    """Change a socket of the core, unless it is closed: its descriptor may be another's now."""
    with suppress(OSError), socket_of(connection.descriptor) as each:
        if os.fstat(each.fileno()).st_ino == connection.inode:
            change(each)
