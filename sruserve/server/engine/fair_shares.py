"""Divide a step's tokens: equal parts for tenants, then for their requests, none left unused."""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from sruserve.server.engine.streams import Stream

EXPRESS = -(10**6)  # the level of small requests; the other levels are priorities
_LATER = 8  # of a tenant's part, 1/8 is for its less urgent priorities


def cost_of(stream: Stream) -> int:
    """Tokens that a stream takes of a step; without inputs 1, for its place in the batch."""
    return max(1, stream.remaining)


def split(wants: Sequence[int], budget: int) -> list[int]:
    """Max-min fair parts of `budget`: none is larger than wanted, and nothing is left unused."""
    if sum(wants) <= budget:
        return list(wants)
    parts = [0] * len(wants)
    short = [i for i, want in enumerate(wants) if want]
    while budget and short:
        fair = max(1, budget // len(short))
        for i in short:
            more = min(wants[i] - parts[i], fair, budget)
            parts[i] += more
            budget -= more
        short = [i for i in short if parts[i] < wants[i]]
    return parts


@dataclass(slots=True, eq=False)
class JobShare:
    """The streams of one job that have inputs left and are in no step.

    new: those that may not hold a state yet. ready: those that may take part in a step.
    tokens: of the ready ones. A width counts at most one chunk of a stream's tokens.
    coming: the width of the streams between new and ready.
    number: of requests, in their order. served: tokens taken of whole streams, by weight.
    """

    tenant: Hashable
    level: int
    number: int
    new: deque[Stream]
    new_width: int
    ready: deque[Stream] = field(default_factory=deque)
    tokens: int = 0
    width: int = 0
    coming: int = 0
    served: float = 0.0


Want = Callable[[JobShare], int]
Part = tuple[JobShare, int]


@dataclass(slots=True)
class _Owed:
    """What a small budget could not divide, and which of the later priorities is next."""

    express: int = 0
    later: int = 0
    turn: int = 0


@dataclass(slots=True, eq=False)
class TenantShare:
    """One tenant's requests, by level. In a level, those whose turn is next come first.

    served: tokens taken of whole streams; clock: what each request would have been served of them
        in equal parts. Whoever comes starts there.
    small_first: whether small requests come first in its next step with whole streams.
    requests: those with inputs left, also while they are in a step.
    """

    served: float
    clock: float = 0.0
    small_first: bool = True
    requests: int = 0
    levels: dict[int, dict[JobShare, None]] = field(default_factory=dict)
    _owed: dict[Want, _Owed] = field(default_factory=lambda: defaultdict(_Owed))

    def want(self, of: Want, most: int) -> int:
        """The tokens that its requests want together, or `most` if they want more."""
        total = 0
        for level in self.levels.values():
            for request in level:
                total += of(request)
                if total >= most:
                    return most
        return total

    def parts(self, budget: int, of: Want) -> list[Part]:
        """Divide `budget` among its requests: by level, and equally within a level."""
        if len(self.levels) == 1:
            (level,) = self.levels.values()
            return _parts(level, budget, of)
        return [
            part
            for level, tokens in self._by_level(budget, of).items()
            if tokens
            for part in _parts(self.levels[level], tokens, of)
        ]

    def _by_level(self, budget: int, of: Want) -> dict[int, int]:
        """Half first to small requests, 1/8 to one later priority in turn, the rest in order."""
        owed = self._owed[of]
        wants = {
            level: min(budget, sum(map(of, self.levels[level]))) for level in sorted(self.levels)
        }
        given = dict.fromkeys(wants, 0)
        priorities = [level for level, want in wants.items() if want and level != EXPRESS]
        limits: list[tuple[int, int]] = []
        if wants.get(EXPRESS):
            half, owed.express = divmod(owed.express + budget, 2)
            limits.append((EXPRESS, half))
        if later := priorities[1:]:
            due, owed.later = divmod(owed.later + budget, _LATER)
            owed.turn += due > 0
            limits.append((later[owed.turn % len(later)], due))
        limits += [(level, budget) for level in (*priorities, EXPRESS) if level in wants]
        for level, limit in limits:
            more = min(limit, wants[level] - given[level], budget)
            given[level] += more
            budget -= more
        return given


def divide(tenants: Iterable[TenantShare], budget: int, of: Want) -> list[Part]:
    """Divide `budget` equally among tenants, and each part among its requests."""
    wanting = [(tenant, want) for tenant in tenants if (want := tenant.want(of, budget))]
    if len(wanting) == 1:
        return wanting[0][0].parts(budget, of)
    shares = split([want for _, want in wanting], budget)
    return [
        part
        for (tenant, _), share in zip(wanting, shares, strict=True)
        if share
        for part in tenant.parts(share, of)
    ]


def _parts(level: Iterable[JobShare], budget: int, of: Want) -> list[Part]:
    """Equal parts for the first requests that want any, each at least one token."""
    wanting: list[Part] = []
    for request in level:
        if want := of(request):
            wanting.append((request, want))
            if len(wanting) == budget:
                break
    parts = split([want for _, want in wanting], budget)
    return [(request, part) for (request, _), part in zip(wanting, parts, strict=True)]
