"""The order in which sentences begin: tenants in turns, and a tenant's requests in turns."""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

from sruserve.server.engine.job import Job
from sruserve.server.engine.translation.sentence import Sentence

_LATER_WEIGHT = 8  # a token of a request that is less urgent than others counts as 8


@dataclass(slots=True, eq=False)
class _Request:
    """The sentences of one job that have not begun. served: weighted tokens of those that have."""

    sentences: deque[Sentence]
    priority: int
    served: float
    dropped: bool = False


@dataclass(slots=True, eq=False)
class _Tenant:
    """served: tokens of its sentences that have begun.

    clock: tokens for each request, had all been served equally. A new request starts there.
    turns: requests by what they were served, then by age; dropped ones are still among them.
    """

    served: float
    clock: float = 0.0
    requests: dict[Job, _Request] = field(default_factory=dict)
    turns: list[tuple[float, int, _Request]] = field(default_factory=list)


class SentenceQueue:
    """Sentences that have not begun.

    The next one is of the least served request of the least served tenant.
    """

    def __init__(self) -> None:
        self._tenants: dict[Hashable, _Tenant] = {}
        self._numbers = count()
        self._clock = 0.0  # tokens of each tenant, had all been served equally

    def __len__(self) -> int:
        return sum(
            len(request.sentences)
            for tenant in self._tenants.values()
            for request in tenant.requests.values()
        )

    def add(self, job: Job, sentences: Sequence[Sentence]) -> None:
        """Queue a job's sentences, in order."""
        tenant = self._tenants.setdefault(job.tenant, _Tenant(self._clock))
        request = _Request(deque(sentences), job.priority, tenant.clock)
        tenant.requests[job] = request
        heappush(tenant.turns, (request.served, next(self._numbers), request))

    def drop(self, job: Job) -> None:
        """Forget a job's sentences, if any wait."""
        tenant = self._tenants.get(job.tenant)
        if tenant is None or job not in tenant.requests:
            return
        request = tenant.requests.pop(job)
        request.dropped = True
        request.sentences.clear()  # its turn may be much later
        if not tenant.requests:
            del self._tenants[job.tenant]
        elif len(tenant.turns) > 2 * len(tenant.requests):
            tenant.turns = [turn for turn in tenant.turns if not turn[2].dropped]
            heapify(tenant.turns)

    def take(self, admit: Callable[[Sentence], bool]) -> list[Sentence]:
        """Remove and return the sentences that may begin, in turns.

        admit: whether a sentence may begin. If not, its tenant waits for the next call.
        """
        taken: list[Sentence] = []
        turns = [(tenant.served, n, tenant) for n, tenant in enumerate(self._tenants.values())]
        heapify(turns)
        while turns:
            _, number, tenant = turns[0]
            request = _turn(tenant)
            if not admit(request.sentences[0]):
                heappop(turns)
                continue
            taken.append(self._take(tenant, request))
            if tenant.requests:
                heapreplace(turns, (tenant.served, number, tenant))
            else:
                heappop(turns)
        return taken

    def _take(self, tenant: _Tenant, request: _Request) -> Sentence:
        sentence = request.sentences.popleft()
        urgent = min(each.priority for each in tenant.requests.values())
        tenant.served += sentence.work
        tenant.clock += sentence.work / len(tenant.requests)
        self._clock += sentence.work / len(self._tenants)
        request.served += sentence.work * (_LATER_WEIGHT if request.priority > urgent else 1)
        if request.sentences:
            heapreplace(tenant.turns, (request.served, tenant.turns[0][1], request))
        else:
            self.drop(sentence.job)
        return sentence


def _turn(tenant: _Tenant) -> _Request:
    """The request whose turn it is among those of its tenant."""
    while tenant.turns[0][2].dropped:
        heappop(tenant.turns)
    return tenant.turns[0][2]
