"""What each tenant may have of a resource, so that none of them takes what is another's."""

import sys
from collections.abc import Callable, Iterable

from sruserve.server.budget import Budget
from sruserve.server.errors import ServeError


def fair_shares(limit: int, wanted: Iterable[int], refuse: Callable[[], ServeError]) -> Budget:
    """A resource in parts: no owner can have more than one part, not even alone.

    The parts of those who want them add up to the limit, so nothing but them is a bound.

    limit: of all owners together.
    wanted: the most that each of them can ever want.
    refuse: makes the error of a refusal.
    """
    return Budget(sys.maxsize, refuse, share=fair_part(limit, wanted), strict=True)


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
