"""A fair queue of sequences with inputs left: no request waits for another's long input."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Set
from heapq import heapify, heappop, heapreplace
from itertools import count

from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.job import Job
from sruserve.server.engine.scheduling.fair_shares import (
    EXPRESS,
    JobShare,
    TenantShare,
    cost_of,
    divide,
    split,
)
from sruserve.server.engine.scheduling.whole_inputs import WholeInputs
from sruserve.server.engine.sequence import ActiveSequence

NO_LIMITS: Mapping[Hashable, int] = {}
_CHUNK = 8  # tokens; a request takes one more sequence into a step for each chunk of its share


class FairQueue:
    """Sequences that have inputs left and are not part of a step.

    Tenants get equal shares of a step. A share that its tenant cannot use goes to the others. Half
    of a tenant's share goes first to its small requests, 1/8 to its less urgent priorities in
    turn, and the rest by priority. Requests of one priority get equal shares.

    sampling_cost: tokens that take as long as to sample one.
    whole: inputs cannot be split. The tenant that was served least is next, and of its requests the
        one that was served least. In every second of a tenant's steps, its small requests precede
        its other requests.
    """

    def __init__(self, config: EngineConfig, whole: bool = False, sampling_cost: int = 0) -> None:
        self._small, self._whole, self._sampling_cost = config.small, whole, sampling_cost
        self._chunk = config.max_batch_tokens if whole else _CHUNK
        self._tenants: dict[Hashable, TenantShare] = {}
        self._requests: dict[Job, JobShare] = {}
        self._numbers = count()
        self._clock = 0.0  # tokens of whole sequences per tenant, had all been served equally
        self.new = 0  # sequences that may not hold a state yet
        self.tokens = 0  # tokens of the sequences that are ready for a step
        self._total_width = 0  # of all sequences

    def __bool__(self) -> bool:
        return bool(self._requests)

    @property
    def first(self) -> Job | None:
        """The job that has been in the queue longest."""
        return next(iter(self._requests), None)

    @property
    def tenants(self) -> Set[Hashable]:
        """The tenants of all sequences."""
        return self._tenants.keys()

    def ready_tokens(self, max_tokens: int) -> dict[Hashable, int]:
        """Tokens that are ready for a step, by tenant; tenants without any are left out.

        With several tenants, a count is at most `max_tokens`.
        """
        if not self.tokens:
            return {}
        if len(self._tenants) == 1:
            return dict.fromkeys(self._tenants, self.tokens)
        wants = (
            (name, tenant.want(_ready_tokens, max_tokens)) for name, tenant in self._tenants.items()
        )
        return {name: want for name, want in wants if want}

    def add(self, job: Job, sequences: Iterable[ActiveSequence]) -> None:
        """Add a job, whose sequences may not hold a state yet."""
        new = deque(sequences)
        small = job.steps <= self._small and job.priority <= 0
        level = EXPRESS if small else job.priority
        width = 0
        for sequence in new:
            if sequence.samples:
                sequence.sampling_cost = self._sampling_cost
            width += min(sequence.remaining or 1, self._chunk) + sequence.sampling_cost
        request = JobShare(job.tenant, level, next(self._numbers), new, width)
        self._requests[job] = request
        tenant = self._tenants.get(job.tenant)
        if tenant is None:
            tenant = self._tenants[job.tenant] = TenantShare(self._clock)
        tenant.requests += 1
        request.served = tenant.clock
        self.new += len(new)
        self._total_width += width
        tenant.levels.setdefault(level, {})[request] = None

    def drop(self, job: Job) -> None:
        """Remove a job that has ended or has no inputs left."""
        request = self._requests.pop(job, None)
        if request is None:
            return
        self.new -= len(request.new)
        self.tokens -= request.tokens
        self._total_width -= _width_of(request)
        tenant = self._tenants[request.tenant]
        tenant.requests -= 1
        if not tenant.requests:
            del self._tenants[request.tenant]
            return
        level = tenant.levels[request.level]
        del level[request]
        if not level:
            del tenant.levels[request.level]

    def begin(self, budget: int, allowed: Callable[[ActiveSequence], bool]) -> list[ActiveSequence]:
        """Take new sequences until every job can use its share of `budget` tokens.

        allowed: returns whether a sequence may hold a state; if so, it counts as holding one.
        `land` returns each sequence to the queue.
        """
        begun: list[ActiveSequence] = []
        for request, part in self._divide(budget, _width_of, self._total_width) if self.new else ():
            while request.new and request.width + request.arriving_width < part:
                if not allowed(request.new[0]):
                    break
                sequence = request.new.popleft()
                sampling = sequence.sampling_cost
                width = min(cost_of(sequence) - sampling, self._chunk) + sampling
                request.new_width -= width
                request.arriving_width += width
                begun.append(sequence)
        self.new -= len(begun)
        return begun

    def land(self, sequence: ActiveSequence) -> None:
        """Make a sequence that `begin` returned ready for a step."""
        width = self.put_back(sequence)
        self._requests[sequence.job].arriving_width -= width
        self._total_width -= width

    def put_back(self, sequence: ActiveSequence) -> int:
        """Make a sequence with inputs left ready for the next step; return its width in tokens."""
        request, cost = self._requests[sequence.job], cost_of(sequence)
        width = min(cost - sequence.sampling_cost, self._chunk) + sequence.sampling_cost
        request.ready.append(sequence)
        request.width += width
        request.tokens += cost
        self.tokens += cost
        self._total_width += width
        return width

    def take(
        self, budget: int, limits: Mapping[Hashable, int] = NO_LIMITS
    ) -> list[tuple[ActiveSequence, int]]:
        """Take sequences for a step, each with a count of inputs; at most `budget` in all.

        A whole input may be longer, but then it is alone.

        limits: the most inputs of some tenants, where inputs can be split.
        """
        if not self.tokens:
            return []
        return self._take_whole(budget) if self._whole else self._take_parts(budget, limits)

    def _take_parts(
        self, budget: int, limits: Mapping[Hashable, int]
    ) -> list[tuple[ActiveSequence, int]]:
        taken: list[tuple[ActiveSequence, int]] = []
        all_fit = self.tokens <= budget and not limits
        parts = self._divide(budget, _ready_tokens, self.tokens, limits)
        for request, part in parts:
            taken += self._take_of(request, part)
        if not all_fit and len(self._requests) > 1:  # served requests and tenants move to the end
            for request, _ in parts:
                level = self._tenants[request.tenant].levels[request.level]
                level[request] = level.pop(request)
            for name in dict.fromkeys(request.tenant for request, _ in parts):
                self._tenants[name] = self._tenants.pop(name)
        return taken

    def _take_of(self, request: JobShare, part: int) -> Iterator[tuple[ActiveSequence, int]]:
        """Take sequences until a chunk of each fills `part`, then split `part` among them."""
        sequences: list[ActiveSequence] = []
        wants: list[int] = []
        cost = width = 0
        while request.ready and width < part:
            sequence = request.ready.popleft()
            remaining = sequence.remaining
            sequences.append(sequence)
            wants.append(remaining)
            cost += (remaining or 1) + sequence.sampling_cost
            width += min(remaining or 1, self._chunk) + sequence.sampling_cost
        request.tokens -= cost
        request.width -= width
        self.tokens -= cost
        self._total_width -= width
        return zip(sequences, split(wants, part), strict=True)

    def _take_whole(self, budget: int) -> list[tuple[ActiveSequence, int]]:
        """Take whole sequences from the least served tenant and its least served request.

        A tenant whose next sequence does not fit keeps its turn, and is first in a later step.
        Tokens that no other tenant's next sequence can use go to later sequences that fit.
        """
        taken: list[tuple[ActiveSequence, int]] = []
        served: dict[TenantShare, None] = {}
        for strict in (True, False):
            turns = [
                (tenant.served, number, tenant, WholeInputs(tenant))
                for number, tenant in enumerate(self._tenants.values())
            ]
            heapify(turns)
            while turns:
                _, number, tenant, tenant_inputs = turns[0]
                # the first one may take a whole step, or it would wait for a larger budget forever
                sequence = tenant_inputs.take(budget if taken else self._chunk, strict)
                if sequence is None:
                    heappop(turns)
                    continue
                request, cost = self._requests[sequence.job], cost_of(sequence)
                request.tokens -= cost
                request.width -= cost
                self.tokens -= cost
                self._total_width -= cost
                taken.append((sequence, sequence.remaining))
                budget -= cost
                tenant.served += cost
                self._clock += cost / len(self._tenants)
                served[tenant] = None
                heapreplace(turns, (tenant.served, number, tenant, tenant_inputs))
            if not self.tokens:
                break
        for tenant in served:
            tenant.small_first = not tenant.small_first
        return taken

    def _divide(
        self,
        budget: int,
        want_of: Callable[[JobShare], int],
        total: int,
        limits: Mapping[Hashable, int] = NO_LIMITS,
    ) -> list[tuple[JobShare, int]]:
        """Divide `budget` among the requests with a want; `total` is the sum of all wants."""
        if limits:
            return divide(self._tenants, budget, want_of, limits)
        if total <= budget:
            requests = self._requests.values()
            return [(request, want) for request in requests if (want := want_of(request))]
        if len(self._requests) == 1:
            (request,) = self._requests.values()
            return [(request, min(want, budget))] if (want := want_of(request)) else []
        return divide(self._tenants, budget, want_of, limits)


def _width_of(request: JobShare) -> int:
    """The width of all of a request's sequences."""
    return request.new_width + request.arriving_width + request.width


def _ready_tokens(request: JobShare) -> int:
    return request.tokens
