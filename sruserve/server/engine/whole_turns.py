"""The order in which a tenant's requests give streams to a step that takes them whole."""

from heapq import heapify, heappop, heapreplace

from sruserve.server.engine.fair_shares import EXPRESS, JobShare, TenantShare, cost_of
from sruserve.server.engine.streams import Stream

_LATER_WEIGHT = 8  # what a token counts of a request that is less urgent than others


class WholeTurns:
    """Requests that were served least come first, and of equal ones the older."""

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

    def take(self, budget: int, strict: bool) -> Stream | None:
        """The next stream, if it is not larger than `budget`.

        strict: none if it is larger; else the first one that is not.
        """
        turns, tenant = self._turns, self._tenant
        while turns and cost_of(turns[0][-1].ready[0]) > budget:
            if strict:
                return None
            heappop(turns)
        if not turns:
            return None
        request = turns[0][-1]
        stream = request.ready.popleft()
        weight = 1 if request.level <= self._urgent else _LATER_WEIGHT
        request.served += weight * cost_of(stream)
        tenant.clock += cost_of(stream) / tenant.requests
        if request.ready:
            heapreplace(turns, self._turn(request))
        else:
            heappop(turns)
        return stream

    def _turn(self, request: JobShare) -> tuple[bool, float, int, JobShare]:
        behind = self._tenant.small_first and request.level != EXPRESS
        return behind, request.served, request.number, request
