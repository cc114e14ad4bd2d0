"""Whatever waits, nobody's work delays another's: properties of the queue, counted in steps."""

import asyncio
from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.job_sequences import sequences_of
from sruserve.server.engine.scheduling.fair_queue import FairQueue
from sruserve.server.engine.scheduling.fair_shares import split
from sruserve.server.engine.sequence import ActiveSequence
from sruserve.server.engine.sequence_input import SequenceInput

MAX_BUDGET = 1024
LIMITS = EngineConfig(max_batch_tokens=MAX_BUDGET)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Steps:
    """A queue that is emptied as the engine does, step by step, without computing anything."""

    def __init__(self, loop: asyncio.AbstractEventLoop, whole: bool = False) -> None:
        self.queue, self.whole, self._loop = FairQueue(LIMITS, whole), whole, loop
        self.left: dict[Job, int] = {}
        self.served: dict[Job, int] = {}

    def add(self, sizes: Iterable[int], tenant: Hashable = None, priority: int = 0) -> Job:
        """A request with inputs of these sizes comes in."""
        job = Job(
            JobKind.CLASSIFY,
            [SequenceInput(np.zeros(size, np.int64)) for size in sizes],
            self._loop,
            lambda *_: None,
            self._loop.create_future(),
            tenant=tenant,
            priority=priority,
        )
        self.left[job], self.served[job] = len(job.items), 0
        self.queue.add(job, sequences_of(job, None))
        return job

    def drop(self, job: Job) -> None:
        del self.left[job]
        self.queue.drop(job)

    @property
    def tokens(self) -> int:
        """Tokens of all requests that are not read yet."""
        return sum(job.steps - self.served[job] for job in self.left)

    def step(self, budget: int = MAX_BUDGET) -> int:
        """One step; returns how many tokens it took."""
        for stream in self.queue.begin(2 * budget, lambda _: True):
            self.queue.land(stream)
        taken = self.queue.take(budget)
        assert len({stream for stream, _ in taken}) == len(taken)
        for stream, count in taken:
            self._read(stream, count)
        return sum(count for _, count in taken)

    def steps_until(self, job: Job, budget: int = MAX_BUDGET, max_steps: int = 10_000) -> int:
        """How many steps it takes until a request is read."""
        for number in range(1, max_steps + 1):
            self.step(budget)
            if job not in self.left:
                return number
        raise AssertionError(f"not read after {max_steps} steps")

    def _read(self, stream: ActiveSequence, count: int) -> None:
        job = stream.job
        assert 0 < count <= stream.remaining
        assert not self.whole or count == stream.remaining
        stream.done += count
        self.served[job] += count
        if stream.remaining:
            self.queue.put_back(stream)
            return
        self.left[job] -= 1
        if not self.left[job]:
            self.drop(job)


Hog = tuple[int, Sequence[int], int]  # tenant, sizes, priority

sizes = st.one_of(
    st.lists(st.integers(1, MAX_BUDGET), min_size=1, max_size=40),
    st.integers(1, MAX_BUDGET).map(lambda size: [size] * 200),
)
hogs = st.lists(st.tuples(st.integers(0, 4), sizes, st.integers(-3, 3)), max_size=12)


def crowd(steps: Steps, hogs: Sequence[Hog]) -> None:
    for tenant, each, priority in hogs:
        steps.add([max(size, LIMITS.small + 1) for size in each], tenant, priority)


@settings(max_examples=40)
@given(hogs=hogs, before=st.integers(0, 8), size=st.integers(1, LIMITS.small), own=st.data())
@pytest.mark.parametrize("budget", [MAX_BUDGET, MAX_BUDGET // 8])
def test_whatever_waits_a_small_request_is_read_within_two_steps_for_each_tenant(
    loop: asyncio.AbstractEventLoop,
    budget: int,
    hogs: list[Hog],
    before: int,
    size: int,
    own: st.DataObject,
) -> None:
    steps = Steps(loop)
    crowd(steps, hogs)
    for _ in range(before):
        steps.step(budget)
    others = own.draw(st.lists(st.integers(1, size), max_size=budget // 2 // size - 1))
    for other in others:
        steps.add([other], tenant=0)
    small = steps.add([size], tenant=0)
    tenants = len({job.tenant for job in steps.left})
    assert steps.steps_until(small, budget) <= 2 * tenants


@settings(max_examples=40)
@given(hogs=hogs, before=st.integers(0, 8), size=st.integers(1, LIMITS.small))
def test_of_whole_inputs_too_a_small_request_is_read_within_two_steps_for_each_tenant(
    loop: asyncio.AbstractEventLoop, hogs: list[Hog], before: int, size: int
) -> None:
    steps = Steps(loop, whole=True)
    crowd(steps, hogs)
    for _ in range(before):
        steps.step()
    small = steps.add([size], tenant=0)
    tenants = len({job.tenant for job in steps.left})
    assert steps.steps_until(small) <= 2 * tenants


@settings(max_examples=40)
@given(hogs=hogs, budget=st.integers(1, MAX_BUDGET))
def test_no_step_leaves_room_unused_while_anybody_waits(
    loop: asyncio.AbstractEventLoop, hogs: list[Hog], budget: int
) -> None:
    steps = Steps(loop)
    crowd(steps, hogs)
    for _ in range(100):
        expected = min(budget, steps.tokens)
        assert steps.step(budget) == expected
        if not steps.left:
            break


def test_a_tenant_that_is_alone_gets_all_of_every_step(loop: asyncio.AbstractEventLoop) -> None:
    steps = Steps(loop)
    steps.add([2000] * 64, tenant="alone")
    assert [steps.step() for _ in range(125)] == [MAX_BUDGET] * 125
    assert not steps.left


@settings(max_examples=40)
@given(hogs=hogs)
def test_whole_inputs_are_left_out_of_a_step_only_where_they_do_not_fit(
    loop: asyncio.AbstractEventLoop, hogs: list[Hog]
) -> None:
    steps = Steps(loop, whole=True)
    crowd(steps, hogs)
    while steps.left:
        rest = MAX_BUDGET - steps.step()
        requests = steps.queue._requests.values()
        assert all(request.ready[0].remaining > rest for request in requests if request.ready)


def test_a_whole_input_that_is_larger_than_a_step_is_read_alone(
    loop: asyncio.AbstractEventLoop,
) -> None:
    steps = Steps(loop, whole=True)
    steps.add([30, 90, 20])
    large = steps.add([200])
    assert [steps.step(budget=64) for _ in range(4)] == [30, 200, 90, 20]
    assert not steps.left
    assert steps.served[large] == 200


def test_a_large_whole_input_is_read_while_small_ones_keep_arriving(
    loop: asyncio.AbstractEventLoop,
) -> None:
    steps = Steps(loop, whole=True)
    steps.add([100] * 50, tenant="a")
    large = steps.add([MAX_BUDGET], tenant="a")
    for _ in range(50):
        steps.add([100] * 20, tenant="b")
        steps.add([100] * 20, tenant="a")
        steps.step()
        if large not in steps.left:
            return
    raise AssertionError("the large input starves")


@pytest.mark.parametrize("whole", [False, True])
def test_tenants_get_equal_parts_whatever_they_send(
    loop: asyncio.AbstractEventLoop, whole: bool
) -> None:
    steps = Steps(loop, whole)
    one = steps.add([100] * 500, tenant="one request")
    many = [steps.add([100] * 100, tenant="many", priority=-3) for _ in range(20)]
    for _ in range(40):
        steps.step()
    mine, theirs = steps.served[one], sum(steps.served[job] for job in many)
    assert mine == pytest.approx(theirs, abs=MAX_BUDGET)


@pytest.mark.parametrize("whole", [False, True])
def test_requests_of_a_tenant_get_equal_parts_whatever_they_hold(
    loop: asyncio.AbstractEventLoop, whole: bool
) -> None:
    steps = Steps(loop, whole)
    jobs = [steps.add([500] * 100), steps.add([50] * 1000), steps.add([100] * 500)]
    for _ in range(60):
        steps.step()
    counts = [steps.served[job] for job in jobs]
    assert max(counts) - min(counts) <= MAX_BUDGET


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("budget", [5, MAX_BUDGET])
def test_the_least_urgent_request_is_read_however_many_urgent_ones_keep_arriving(
    loop: asyncio.AbstractEventLoop, whole: bool, budget: int
) -> None:
    steps = Steps(loop, whole)
    last = steps.add([5] * 20, priority=1000)
    steps.add([5] * 20, priority=999)
    for number in range(4000):
        if len(steps.left) < 12:  # as many as the queue admits
            steps.add([5] * (budget // 5), priority=-1000 if number % 2 else 0)
        steps.step(budget)
        if last not in steps.left:
            return
    raise AssertionError("it starves")


def test_an_urgent_request_gets_most_of_its_tenants_part(loop: asyncio.AbstractEventLoop) -> None:
    steps = Steps(loop)
    patient = [steps.add([1000] * 50, priority=5) for _ in range(10)]
    urgent = steps.add([1000] * 50, priority=-5)
    for _ in range(20):
        steps.step()
    assert steps.served[urgent] == 20 * MAX_BUDGET * 7 // 8
    assert sum(steps.served[job] for job in patient) == 20 * MAX_BUDGET // 8


@settings(max_examples=40)
@given(hogs=hogs, stay=st.integers(0, 5), data=st.data())
def test_requests_that_are_dropped_leave_nothing(
    loop: asyncio.AbstractEventLoop, hogs: list[Hog], stay: int, data: st.DataObject
) -> None:
    steps = Steps(loop)
    crowd(steps, hogs)
    for _ in range(stay):
        steps.step(100)
    for job in data.draw(st.permutations(list(steps.left))):
        steps.drop(job)
    queue = steps.queue
    assert (queue.new, queue.tokens, bool(queue), queue._tenants) == (0, 0, False, {})
    assert steps.step() == 0


@settings(max_examples=40)
@given(wants=st.lists(st.integers(0, 50)), budget=st.integers(0, 500))
def test_parts_are_max_min_fair(wants: list[int], budget: int) -> None:
    parts = split(wants, budget)
    assert sum(parts) == min(budget, sum(wants))
    largest = max(parts, default=0)
    for want, part in zip(wants, parts, strict=True):
        assert part == want or largest - 1 <= part < want


def test_prompts_take_a_place_for_the_token_that_follows_them(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """To sample by many scores takes longer than to read a short prompt."""

    def step(cost: int, size: int, budget: int) -> list[int]:
        """The inputs that a step reads of each of many prompts."""
        queue = FairQueue(LIMITS, sampling_cost=cost)
        job = Job(
            JobKind.GENERATE,
            [SequenceInput(np.zeros(size, np.int64)) for _ in range(500)],
            loop,
            lambda *_: None,
            loop.create_future(),
        )
        queue.add(job, sequences_of(job, None))
        for stream in queue.begin(2 * budget, lambda _: True):
            queue.land(stream)
        return [count for _, count in queue.take(budget)]

    assert step(0, 1, 512) == [1] * 500
    assert step(63, 1, 512) == [1] * 8
    assert step(63, 4, 512) == [4] * 8
    assert step(56, 200, 512) == [64] * 8  # none of these ends in this step
    assert step(5000, 1, 512) == [1]  # a step always takes one
