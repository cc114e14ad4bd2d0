"""Limit the open connections of a worker, so that no address keeps all others out."""

import ipaddress
import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Protocol

log = logging.getLogger("sruserve.server")

_LOG_SECONDS = 60.0
_UNFINISHED_SECONDS = 1.0  # after which a request whose body is incomplete gives way


class Evictable(Protocol):
    """An open connection that can give way to a new one."""

    def abort(self) -> None:
        """Close at once, to make room for a new connection."""
        ...


class PeerConnections:
    """The connections of one client address.

    idle: the connections that wait for their client, the longest idle first.
    stuck: those whose client does not read what it gets, the longest first.
    unfinished: those that wait for the rest of a body, with the time since when, the longest first.
    """

    __slots__ = ("address", "idle", "open", "stuck", "unfinished")

    def __init__(self, address: str) -> None:
        self.address = address
        self.open = 0
        self.idle: dict[Evictable, None] = {}
        self.stuck: dict[Evictable, None] = {}
        self.unfinished: dict[Evictable, float] = {}

    def has_slow(self, now: float) -> bool:
        """Whether one waits for the rest of a body, and has done so for a while."""
        return bool(self.unfinished) and (
            next(iter(self.unfinished.values())) + _UNFINISHED_SECONDS <= now
        )

    def make_room(self, now: float) -> bool:
        """Let a connection give way, an idle one first; returns whether there was one."""
        connections: Iterable[Evictable] = self.idle or self.stuck
        if not connections and self.has_slow(now):
            connections = self.unfinished
        connection = next(iter(connections), None)
        if connection is None:
            return False
        self.forget(connection)
        connection.abort()
        return True

    def forget(self, connection: Evictable) -> None:
        """No longer let a connection give way."""
        self.idle.pop(connection, None)
        self.stuck.pop(connection, None)
        self.unfinished.pop(connection, None)


class Connections:
    """All open connections. At the limit, one of the address with the most gives way to a new one:
    an idle one first, then a stuck one, then one that waits for the rest of a body.

    One address may have half of the connections, so that it cannot keep all others out.

    max_open: the limit. on_change: called with 1 or -1 when a connection opens or closes.
    clock: monotonic seconds.
    max_sockets: the limit of WebSockets, which do not give way: half of what one address may have,
        because all clients behind a proxy have its address, and their requests need the rest.
    """

    def __init__(
        self,
        max_open: int,
        on_change: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_open, self.open = max_open, 0
        self._share = max(1, max_open // 2)
        self.max_sockets = max(1, self._share // 2)
        self._on_change, self._clock = on_change, clock
        self._peers: dict[str, PeerConnections] = {}
        self._logged = -math.inf

    def add(self, address: str) -> PeerConnections | None:
        """Count a new connection; None: there is no room, and it is not counted."""
        address = network_of(address)
        peer = self._peers.get(address) or PeerConnections(address)
        has_room = True
        if peer.open >= self._share:
            has_room = self._make_room(peer)
        elif self.open >= self.max_open:
            has_room = self._make_room(self._largest_peer() or peer)
        if not has_room:
            return None
        self._peers[address] = peer
        peer.open += 1
        self.open += 1
        self._on_change(1)
        return peer

    def remove(self, connection: Evictable, peer: PeerConnections) -> None:
        """Remove a closed connection."""
        peer.forget(connection)
        peer.open -= 1
        self.open -= 1
        self._on_change(-1)
        if not peer.open:
            del self._peers[peer.address]

    def wait_for_body(self, connection: Evictable, peer: PeerConnections) -> None:
        """Note that a connection waits for the rest of a body."""
        peer.unfinished.setdefault(connection, self._clock())

    def _largest_peer(self) -> PeerConnections | None:
        """The address with the most connections, of those with one that may give way."""
        now = self._clock()
        giving = [
            peer for peer in self._peers.values() if peer.idle or peer.stuck or peer.has_slow(now)
        ]
        return max(giving, key=lambda peer: peer.open, default=None)

    def _make_room(self, peer: PeerConnections) -> bool:
        self._log()
        return peer.make_room(self._clock())

    def _log(self) -> None:
        if (now := self._clock()) - self._logged >= _LOG_SECONDS:
            self._logged = now
            log.warning(
                "%d connections are open, and the limit is %d (%d of one address): idle ones are "
                "closed and new ones are refused; to raise the limit, raise "
                "SRUSERVE_MAX_CONNECTIONS and the limit of open files",
                self.open, self.max_open, self._share,
            )  # fmt: skip


def network_of(address: str) -> str:
    """What counts as one address: for IPv6 its network half, because a client owns the rest."""
    if ":" not in address or "." in address:
        return address
    return ipaddress.ip_address(address.partition("%")[0]).exploded[:19]
