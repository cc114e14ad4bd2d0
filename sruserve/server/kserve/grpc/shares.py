"""Shares of what gRPC calls may use together, by tenant, or by connection and address."""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

from sruserve.server.auth import Tenant
from sruserve.server.budget import Budget, Hold
from sruserve.server.errors import ServeError
from sruserve.server.http.connections import network_of


class Caller(NamedTuple):
    """Who counts for a call.

    owner: its tenant; without API keys, its connection. client: its tenant, or the address of its
    connection, since a client may open many.
    """

    owner: Hashable
    client: Hashable


def caller_of(tenant: Tenant, context: Any) -> Caller:
    """Who counts for a call."""
    if tenant.owner:
        return Caller(tenant.owner, tenant.owner)
    peer = context.peer()
    return Caller(peer, address_of(peer))


def address_of(peer: str) -> str:
    """The address in a peer's name, such as `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`."""
    kind, _, rest = peer.partition(":")
    address = unquote(rest.rpartition(":")[0]).strip("[]")
    return network_of(address) if kind in ("ipv4", "ipv6") and address else peer


class CallShares:
    """A limit of which an owner may have half, and a sole tenant all.

    One of more than two tenants may have half of what the others leave. Without API keys, the
    connections of one address may have three quarters together.

    tenants: the number of tenants with keys.
    """

    def __init__(self, limit: int, refuse: Callable[[], ServeError], tenants: int) -> None:
        self._of_owners = Budget(limit, refuse, yields=tenants > 2)
        self._of_clients = Budget(limit, refuse)
        self.set_limit(limit, limit if tenants == 1 else max(1, limit // 2))

    def set_limit(self, limit: int, share: int) -> None:
        """Change the limit of all together, and an owner's share of it."""
        self._of_owners.limit = self._of_clients.limit = limit
        self._of_owners.share, self._of_clients.share = share, max(1, limit * 3 // 4)

    def hold(self, amount: int, caller: Caller) -> "SharedHold":
        """Hold an amount, or raise the limit's error."""
        own = self._of_owners.hold(amount, caller.owner)
        if caller.client == caller.owner:
            return SharedHold(own)
        try:
            return SharedHold(own, self._of_clients.hold(amount, caller.client))
        except BaseException:
            own.release()
            raise


class SharedHold:
    """What a call holds: for its tenant, or for its connection and for the address of that."""

    def __init__(self, *holds: Hold) -> None:
        self._holds = holds

    def release(self, *_: object) -> None:
        """Release all; a second release does nothing."""
        for hold in self._holds:
            hold.release()

    def __enter__(self) -> Self:
        return self

    __exit__ = release
