"""The order of a tenant's requests in steps that take whole sequences."""

from heapq import heapify, heappop, heapreplace

from sruserve.server.engine.scheduling.fair_shares import EXPRESS, JobShare, TenantShare, cost_of
from sruserve.server.engine.sequence import ActiveSequence

_LATER_WEIGHT = 8  # a token of a request that is less urgent than others counts as 8


class WholeInputs:
    """One tenant's requests: the least served first, and of equally served ones the oldest."""

    def __init__(self, tenant: TenantShare) -> None:
        self._tenant = tenant
        self._urgent = min((level for level in tenant.levels if level != EXPRESS), default=EXPRESS)
        self._turns = [
            self._turn(request)
            for level in tenant.levels.values()
            for request in level
            if request.ready
        ]
        heapify(self._turns)

    def take(self, budget: int, strict: bool) -> ActiveSequence | None:
        """Take the next sequence that costs at most `budget` tokens.

        strict: return None if the next sequence costs more; else skip the requests whose next
            sequence does.
        """
        turns, tenant = self._turns, self._tenant
        while turns and cost_of(turns[0][-1].ready[0]) > budget:
            if strict:
                return None
            heappop(turns)
        if not turns:
            return None
        request = turns[0][-1]
        sequence = request.ready.popleft()
        weight = 1 if request.level <= self._urgent else _LATER_WEIGHT
        request.served += weight * cost_of(sequence)
        tenant.clock += cost_of(sequence) / tenant.requests
        if request.ready:
            heapreplace(turns, self._turn(request))
        else:
            heappop(turns)
        return sequence

    def _turn(self, request: JobShare) -> tuple[bool, float, int, JobShare]:
        postponed = self._tenant.small_first and request.level != EXPRESS
        return postponed, request.served, request.number, request
