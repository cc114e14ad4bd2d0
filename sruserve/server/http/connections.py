"""Bound the open connections of a worker, so that descriptors are left for everything else."""

import ipaddress
import logging
import resource
from collections.abc import Callable
from time import monotonic
from typing import Protocol

log = logging.getLogger("sruserve.server")

_LOG_SECONDS = 60.0
_RESERVED = 64  # descriptors, at least, for models, Redis, grammars and logs
_GRPC = 128  # connections: clients send all calls of a process over one or two


class Connection(Protocol):
    """What can be asked of an open connection."""

    def give_way(self) -> None:
        """Close, because a new connection needs the room."""
        ...


class Place:
    """The connections of one client address.

    idle: those that wait for their client, the longest idle one first.
    """

    __slots__ = ("address", "idle", "open")

    def __init__(self, address: str) -> None:
        self.address = address
        self.open = 0
        self.idle: dict[Connection, None] = {}


class Connections:
    """All open connections. If there are too many, idle ones give way to new ones.

    One address may have half of them, so that it cannot keep all others out.

    most: open connections. tell: gets 1 and -1 as they come and go.
    """

    def __init__(self, most: int, tell: Callable[[int], None] = lambda _: None) -> None:
        self.most, self.open = most, 0
        self._share = max(1, most // 2)
        self._tell = tell
        self._places: dict[str, Place] = {}
        self._logged = -_LOG_SECONDS

    def add(self, address: str) -> Place | None:
        """Count a new connection; None: there is no room for it, and it does not count."""
        address = _network(address)
        place = self._places.get(address) or Place(address)
        room = True
        if place.open >= self._share:
            room = self._make_room(place)
        elif self.open >= self.most:
            crowds = [each for each in self._places.values() if each.idle]
            room = self._make_room(max(crowds, key=lambda each: each.open, default=place))
        if not room:
            return None
        self._places[address] = place
        place.open += 1
        self.open += 1
        self._tell(1)
        return place

    def remove(self, connection: Connection, place: Place) -> None:
        """A connection is closed."""
        place.idle.pop(connection, None)
        place.open -= 1
        self.open -= 1
        self._tell(-1)
        if not place.open:
            del self._places[place.address]

    def _make_room(self, place: Place) -> bool:
        self._log()
        if not place.idle:
            return False
        longest = next(iter(place.idle))
        del place.idle[longest]
        longest.give_way()
        return True

    def _log(self) -> None:
        if (now := monotonic()) - self._logged >= _LOG_SECONDS:
            self._logged = now
            log.warning(
                "%d connections are open, and the limit is %d (%d of one address): idle ones are "
                "closed and new ones are refused; SRUSERVE_MAX_CONNECTIONS and the limit of open "
                "files set it",
                self.open, self.most, self._share,
            )  # fmt: skip


def _network(address: str) -> str:
    """What counts as one address: of IPv6 the first half, since a client has all of the rest."""
    if ":" not in address or "." in address:
        return address
    return ipaddress.ip_address(address.partition("%")[0]).exploded[:19]


def divide_files(connections: int, grpc: bool) -> tuple[int, int]:
    """Let the process open files for so many connections; returns how many HTTP and gRPC may have.

    A quarter of the descriptors, or less, is for gRPC, a quarter for everything else; the rest is
    for HTTP.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + _RESERVED
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return connections, _GRPC if grpc else 0
    left = soft - max(_RESERVED, soft // 4)
    of_grpc = min(_GRPC, max(1, left // 3)) if grpc else 0
    return min(connections, max(1, left - of_grpc)), of_grpc
