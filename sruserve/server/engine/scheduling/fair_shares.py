"""Divide a step's tokens equally among tenants, then among their requests; none stay unused."""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sruserve.server.engine.sequence import ActiveSequence

EXPRESS = -(10**6)  # the level of small requests; the other levels are priorities
_LATER = 8  # 1/8 of a tenant's share is for its less urgent priorities


def cost_of(sequence: ActiveSequence) -> int:
    """Tokens that a sequence counts as in a step; without inputs 1, for its place in the batch."""
    return max(1, sequence.remaining) + sequence.sampling_cost


def split(wants: Sequence[int], budget: int) -> list[int]:
    """Max-min fair parts of `budget`: no part exceeds its want, and no usable token is left."""
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
    """The sequences of one job that have inputs left and are not part of a step.

    number: the request's place in the order of arrival.
    new: sequences that may not hold a state yet. ready: sequences that may take part in a step.
    tokens: of the ready sequences. width: of the ready sequences, at most one chunk of tokens each.
    new_width: of the new sequences.
    arriving_width: of the sequences that are no longer new and not yet ready.
    served: weighted tokens that were taken of whole sequences.
    """

    tenant: Hashable
    level: int
    number: int
    new: deque[ActiveSequence]
    new_width: int
    ready: deque[ActiveSequence] = field(default_factory=deque)
    tokens: int = 0
    width: int = 0
    arriving_width: int = 0
    served: float = 0.0


Want = Callable[[JobShare], int]
Part = tuple[JobShare, int]


@dataclass(slots=True)
class _Remainders:
    """Tokens that small budgets could not divide, and the index of the next later priority."""

    express: int = 0
    later: int = 0
    turn: int = 0


@dataclass(slots=True, eq=False)
class TenantShare:
    """One tenant's requests, by level. Within a level, the requests whose turn is next are first.

    served: tokens taken of whole sequences.
    clock: tokens of whole sequences per request, had all been served equally. A new request starts
        there.
    small_first: whether small requests are first in the tenant's next step with whole sequences.
    requests: requests with inputs left, including those that are part of a step.
    """

    served: float
    clock: float = 0.0
    small_first: bool = True
    requests: int = 0
    levels: dict[int, dict[JobShare, None]] = field(default_factory=dict)
    _remainders: dict[Want, _Remainders] = field(default_factory=lambda: defaultdict(_Remainders))

    def want(self, want_of: Want, max_tokens: int) -> int:
        """The sum of the requests' wants, at most `max_tokens`."""
        total = 0
        for level in self.levels.values():
            for request in level:
                total += want_of(request)
                if total >= max_tokens:
                    return max_tokens
        return total

    def parts(self, budget: int, want_of: Want) -> list[Part]:
        """Divide `budget` among the requests: by level, and equally within a level."""
        if len(self.levels) == 1:
            (level,) = self.levels.values()
            return _parts(level, budget, want_of)
        return [
            part
            for level, tokens in self._by_level(budget, want_of).items()
            if tokens
            for part in _parts(self.levels[level], tokens, want_of)
        ]

    def _by_level(self, budget: int, want_of: Want) -> dict[int, int]:
        """Half for small requests first, 1/8 for later priorities in turn, the rest in order."""
        remainders = self._remainders[want_of]
        wants = {
            level: min(budget, sum(map(want_of, self.levels[level])))
            for level in sorted(self.levels)
        }
        granted = dict.fromkeys(wants, 0)
        priorities = [level for level, want in wants.items() if want and level != EXPRESS]
        limits: list[tuple[int, int]] = []
        if wants.get(EXPRESS):
            half, remainders.express = divmod(remainders.express + budget, 2)
            limits.append((EXPRESS, half))
        if later := priorities[1:]:
            due, remainders.later = divmod(remainders.later + budget, _LATER)
            remainders.turn += due > 0
            limits.append((later[remainders.turn % len(later)], due))
        limits += [(level, budget) for level in (*priorities, EXPRESS) if level in wants]
        for level, limit in limits:
            more = min(limit, wants[level] - granted[level], budget)
            granted[level] += more
            budget -= more
        return granted


def divide(
    tenants: Mapping[Hashable, TenantShare],
    budget: int,
    want_of: Want,
    limits: Mapping[Hashable, int],
) -> list[Part]:
    """Divide `budget` equally among tenants, and each part among its requests.

    limits: the most that some tenants get.
    """
    wanting = [
        (tenant, want)
        for name, tenant in tenants.items()
        if (want := tenant.want(want_of, min(budget, limits.get(name, budget))))
    ]
    if len(wanting) == 1:
        return wanting[0][0].parts(budget, want_of)
    shares = split([want for _, want in wanting], budget)
    return [
        part
        for (tenant, _), share in zip(wanting, shares, strict=True)
        if share
        for part in tenant.parts(share, want_of)
    ]


def _parts(level: Iterable[JobShare], budget: int, want_of: Want) -> list[Part]:
    """Equal parts for the first requests with a want, each of at least one token."""
    wanting: list[Part] = []
    for request in level:
        if want := want_of(request):
            wanting.append((request, want))
            if len(wanting) == budget:
                break
    parts = split([want for _, want in wanting], budget)
    return [(request, part) for (request, _), part in zip(wanting, parts, strict=True)]
