"""What each tenant may have of a resource, so that none of them takes what is another's."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from sruserve.server.errors import ServeError
from sruserve.server.tenants import Tenant


class Shares:
    """A resource in parts: no tenant can have more than one part. Used by one thread.

    Unlike a `Budget`, nobody may exceed it alone, since that would be at the cost of the others.

    limit: of all tenants together.
    wanted: the most that each of them can ever want.
    refuse: makes the error of a refusal.
    """

    def __init__(self, limit: int, wanted: Iterable[int], refuse: Callable[[], ServeError]) -> None:
        self.part = fair_part(limit, wanted)
        self._refuse = refuse
        self._held: defaultdict[Tenant, int] = defaultdict(int)

    @property
    def held(self) -> int:
        """What all tenants have together."""
        return sum(self._held.values())

    def take(self, tenant: Tenant, amount: int, beyond: int = 0) -> None:
        """Let a tenant have so much more (less, if it is negative), or raise.

        beyond: how far it may exceed its part, because it is about to give as much back.
        """
        held = self._held[tenant] + amount
        if amount > 0 and held > self.part + beyond:
            raise self._refuse()
        self._held[tenant] = held


def fair_part(limit: int, wanted: Iterable[int]) -> int:
    """The largest part that fits for all: who wants less leaves the rest to those who want more.

    It is 1 at least: where not even that fits for all, nobody is left without any.
    """
    ordered = sorted(wanted)
    for position, most in enumerate(ordered):
        part = max(1, limit // (len(ordered) - position))
        if most >= part:
            return part
        limit -= most
    return max(ordered, default=limit)
