"""The streams with inputs left, in an order that lets nobody wait for what others have sent."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import count

from sruserve.server.engine.fair_shares import (
    EXPRESS,
    JobShare,
    TenantShare,
    cost_of,
    divide,
    split,
)
from sruserve.server.engine.jobs import Job
from sruserve.server.engine.limits import Limits
from sruserve.server.engine.streams import Stream
from sruserve.server.engine.whole_turns import WholeTurns

_CHUNK = 8  # tokens of each stream for which one more stream takes part in a step


class FairQueue:
    """The streams that have inputs left, while they are in no step.

    Tenants get equal parts of a step, and what one does not want goes to the others. Of a tenant's
    part, half goes first to its small requests, 1/8 to its less urgent priorities in turns, and the
    rest by priority. Requests of one priority get equal parts.

    whole: inputs cannot be cut. Then the tenant, and of its requests the one, goes first that was
        served least; in every second of its steps a tenant's small requests go before all others.
    """

    def __init__(self, limits: Limits, whole: bool = False) -> None:
        self._small, self._whole = limits.small, whole
        self._chunk = limits.max_batch_tokens if whole else _CHUNK
        self._tenants: dict[Hashable, TenantShare] = {}
        self._requests: dict[Job, JobShare] = {}
        self._numbers = count()
        self._clock = 0.0  # what each tenant would have been served of whole streams in equal parts
        self.new = 0  # streams that may not hold a state yet
        self.tokens = 0  # of streams that may take part in a step
        self._reach = 0  # the width of all streams

    def __bool__(self) -> bool:
        return bool(self._requests)

    @property
    def first(self) -> Job | None:
        """The job that has been here longest."""
        return next(iter(self._requests), None)

    def wanted(self, most: int) -> dict[Hashable, int]:
        """For each tenant the tokens that may take part in a step, or `most` if these are more."""
        if not self.tokens:
            return {}
        if len(self._tenants) == 1:
            return dict.fromkeys(self._tenants, self.tokens)
        wants = ((name, tenant.want(_tokens, most)) for name, tenant in self._tenants.items())
        return {name: want for name, want in wants if want}

    def add(self, job: Job, streams: Iterable[Stream]) -> None:
        """A job comes in. Its streams may not hold a state yet."""
        new = deque(streams)
        small = job.steps <= self._small and job.priority <= 0
        level = EXPRESS if small else job.priority
        width = 0
        for stream in new:
            width += min(stream.remaining or 1, self._chunk)
        request = JobShare(job.tenant, level, next(self._numbers), new, width)
        self._requests[job] = request
        tenant = self._tenants.get(job.tenant)
        if tenant is None:
            tenant = self._tenants[job.tenant] = TenantShare(self._clock)
        tenant.requests += 1
        request.served = tenant.clock
        self.new += len(new)
        self._reach += width
        tenant.levels.setdefault(level, {})[request] = None

    def drop(self, job: Job) -> None:
        """A job has no inputs left, or has ended: forget it."""
        request = self._requests.pop(job, None)
        if request is None:
            return
        self.new -= len(request.new)
        self.tokens -= request.tokens
        self._reach -= _reach(request)
        tenant = self._tenants[request.tenant]
        tenant.requests -= 1
        if not tenant.requests:
            del self._tenants[request.tenant]
            return
        level = tenant.levels[request.level]
        del level[request]
        if not level:
            del tenant.levels[request.level]

    def begin(self, budget: int, allowed: Callable[[Stream], bool]) -> list[Stream]:
        """Take new streams, enough for every job to use its part of `budget`.

        allowed: whether a stream may hold a state; if so, it holds one from then on.
        They come back with `land`.
        """
        begun: list[Stream] = []
        for request, part in self._divide(budget, _reach, self._reach) if self.new else ():
            while request.new and request.width + request.coming < part:
                if not allowed(request.new[0]):
                    break
                stream = request.new.popleft()
                width = min(cost_of(stream), self._chunk)
                request.new_width -= width
                request.coming += width
                begun.append(stream)
        self.new -= len(begun)
        return begun

    def land(self, stream: Stream) -> None:
        """A stream that has begun may take part in a step."""
        width = self.put_back(stream)
        self._requests[stream.job].coming -= width
        self._reach -= width

    def put_back(self, stream: Stream) -> int:
        """A stream comes out of a step with inputs left, for the next one; returns its width."""
        request, cost = self._requests[stream.job], cost_of(stream)
        width = min(cost, self._chunk)
        request.ready.append(stream)
        request.width += width
        request.tokens += cost
        self.tokens += cost
        self._reach += width
        return width

    def take(self, budget: int) -> list[tuple[Stream, int]]:
        """Take streams for a step, each with how many of its inputs; at most `budget` in all."""
        if not self.tokens:
            return []
        return self._take_whole(budget) if self._whole else self._take_parts(budget)

    def _take_parts(self, budget: int) -> list[tuple[Stream, int]]:
        taken: list[tuple[Stream, int]] = []
        all_fit = self.tokens <= budget
        parts = self._divide(budget, _tokens, self.tokens)
        for request, part in parts:
            taken += self._take_of(request, part)
        if not all_fit and len(self._requests) > 1:  # who was served goes behind the others
            for request, _ in parts:
                level = self._tenants[request.tenant].levels[request.level]
                level[request] = level.pop(request)
            for name in dict.fromkeys(request.tenant for request, _ in parts):
                self._tenants[name] = self._tenants.pop(name)
        return taken

    def _take_of(self, request: JobShare, part: int) -> Iterator[tuple[Stream, int]]:
        """Take a chunk of one stream after another, or more where there are not enough of them."""
        streams: list[Stream] = []
        wants: list[int] = []
        cost = width = 0
        while request.ready and width < part:
            stream = request.ready.popleft()
            left = stream.remaining
            streams.append(stream)
            wants.append(left)
            cost += left or 1
            width += min(left or 1, self._chunk)
        request.tokens -= cost
        request.width -= width
        self.tokens -= cost
        self._reach -= width
        return zip(streams, split(wants, part), strict=True)

    def _take_whole(self, budget: int) -> list[tuple[Stream, int]]:
        """Take whole streams, of the tenant and the request that were served least.

        A tenant whose turn does not fit keeps it, and with it the beginning of a later step. What
        nobody else can use goes to the streams behind it.
        """
        taken: list[tuple[Stream, int]] = []
        served: dict[TenantShare, None] = {}
        for strict in (True, False):
            turns = [
                (tenant.served, number, tenant, WholeTurns(tenant))
                for number, tenant in enumerate(self._tenants.values())
            ]
            heapify(turns)
            while turns:
                _, number, tenant, own = turns[0]
                stream = own.take(budget, strict)
                if stream is None:
                    heappop(turns)
                    continue
                request, cost = self._requests[stream.job], cost_of(stream)
                request.tokens -= cost
                request.width -= cost
                self.tokens -= cost
                self._reach -= cost
                taken.append((stream, stream.remaining))
                budget -= cost
                tenant.served += cost
                self._clock += cost / len(self._tenants)
                served[tenant] = None
                heapreplace(turns, (tenant.served, number, tenant, own))
            if not self.tokens:
                break
        for tenant in served:
            tenant.small_first = not tenant.small_first
        return taken

    def _divide(
        self, budget: int, of: Callable[[JobShare], int], total: int
    ) -> list[tuple[JobShare, int]]:
        """Parts of `budget` for the requests that want any; `total`: what all of them want."""
        if total <= budget:
            return [(each, want) for each in self._requests.values() if (want := of(each))]
        if len(self._requests) == 1:
            (request,) = self._requests.values()
            return [(request, min(want, budget))] if (want := of(request)) else []
        return divide(self._tenants.values(), budget, of)


def _reach(request: JobShare) -> int:
    """The width of all of a request's streams."""
    return request.new_width + request.coming + request.width


def _tokens(request: JobShare) -> int:
    return request.tokens
