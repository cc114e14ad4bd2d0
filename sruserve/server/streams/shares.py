"""Fair shares of a resource among tenants: none of them can use the part of another."""

import sys
from collections.abc import Callable, Iterable

from sruserve.server.budget import Budget
from sruserve.server.errors import ServeError


def fair_shares(limit: int, demands: Iterable[int], refuse: Callable[[], ServeError]) -> Budget:
    """A budget in equal parts: no owner can have more than one part, not even alone.

    The parts of all owners add up to the limit, so the budget has no other bound.

    limit: of all owners together.
    demands: the maximal amount that each owner can ever request.
    refuse: makes the error of a refusal.
    """
    return Budget(sys.maxsize, refuse, share=fair_part(limit, demands), strict=True)


def fair_part(limit: int, demands: Iterable[int]) -> int:
    """The largest equal part: an owner with a smaller demand leaves the rest to the others.

    It is at least 1, even if the limit is smaller than the number of owners.
    """
    ordered = sorted(demands)
    for position, demand in enumerate(ordered):
        part = max(1, limit // (len(ordered) - position))
        if demand >= part:
            return part
        limit -= demand
    return max(ordered, default=limit)
