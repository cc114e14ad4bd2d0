"""The queue's way in, what it admits, and when it asks to come back."""

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import suppress

import numpy as np
import pytest

from sruserve.server.engine.admission_queue import AdmissionQueue
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.errors import Overloaded


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def job(
    loop: asyncio.AbstractEventLoop,
    inputs: int = 0,
    length: int = 1,
    cost: int = 0,
    tenant: Hashable = None,
) -> Job:
    items = [SequenceInput(np.zeros(length, np.int64))] * inputs
    done = loop.create_future()
    return Job(JobKind.SCORE, items, loop, lambda *_: None, done, input_bytes=cost, tenant=tenant)


@pytest.mark.parametrize(("pace", "retry_after"), [(0.01, 1), (0.5, 5), (2.0, 19), (30.0, 60)])
def test_a_full_queue_says_to_retry_when_half_of_it_is_done(
    loop: asyncio.AbstractEventLoop, pace: float, retry_after: int
) -> None:
    now = 0.0
    admission_queue = AdmissionQueue(EngineConfig(max_queue_requests=20), lambda: now)
    for _ in range(10):
        one = job(loop)
        admission_queue.submit(one)
        now += pace
        admission_queue.mark_consumed(one)
        now += 1000  # nobody waits, so it tells nothing
    for _ in range(20):
        admission_queue.submit(job(loop))
    with pytest.raises(Overloaded) as refused:
        admission_queue.submit(job(loop))
    assert refused.value.retry_after_seconds == retry_after


@pytest.mark.parametrize("large", [{"inputs": 300}, {"length": 100_000}, {"cost": 5000}])
def test_what_waits_is_bounded_in_inputs_tokens_and_bytes_and_small_requests_still_come_in(
    loop: asyncio.AbstractEventLoop, large: dict[str, int]
) -> None:
    limits = EngineConfig(max_batch_tokens=64, max_queue_requests=20, max_queue_bytes=16_000)
    admission_queue = AdmissionQueue(limits)
    size = {"inputs": 1, **large}
    admitted = _fill(admission_queue, [job(loop, **size) for _ in range(20)])
    assert 1 < len(admitted) < 20
    amounts = [sum(each.steps for each in admitted), sum(each.input_bytes for each in admitted)]
    amounts.append(sum(len(each.items) for each in admitted))
    bounds = [limits.max_queue_tokens, limits.max_queue_bytes, limits.max_queue_inputs]
    assert all(amount <= bound for amount, bound in zip(amounts, bounds, strict=True))
    admission_queue.submit(job(loop, inputs=1, cost=50))
    for each in admitted:
        admission_queue.mark_consumed(each)
    admission_queue.submit(job(loop, **size))


def test_a_request_that_is_alone_may_be_of_any_size(loop: asyncio.AbstractEventLoop) -> None:
    admission_queue = AdmissionQueue(EngineConfig(max_queue_bytes=1, max_queue_requests=1))
    large = job(loop, inputs=100, length=100)
    admission_queue.submit(large)
    admission_queue.mark_consumed(large)
    admission_queue.submit(large)
    assert admission_queue.queued == 1


@pytest.mark.parametrize("tenant", [None, "many"])
def test_a_request_that_is_alone_and_larger_than_the_queue_leaves_others_their_part(
    loop: asyncio.AbstractEventLoop, tenant: Hashable
) -> None:
    limits = EngineConfig(max_batch_tokens=64, max_queue_requests=20, max_queue_bytes=16_000)
    admission_queue = AdmissionQueue(limits)
    alone = job(loop, inputs=5000, length=20_000, cost=10**9, tenant=tenant)
    admission_queue.submit(alone)
    mine = job(loop, inputs=10, length=1000, cost=1000, tenant="mine")
    admission_queue.check(mine.input_bytes, mine.tenant)
    admission_queue.submit(mine)
    with pytest.raises(Overloaded):
        admission_queue.submit(job(loop, inputs=300, length=1000, tenant=tenant))
    for one in (alone, mine):
        admission_queue.mark_consumed(one)
    assert admission_queue._waiting == (0, 0, 0, 0)


def test_a_tenant_with_a_key_leaves_an_eighth_of_the_queue_to_others(
    loop: asyncio.AbstractEventLoop,
) -> None:
    admission_queue = AdmissionQueue(EngineConfig(max_queue_requests=80))
    greedy = [job(loop, inputs=1, tenant="greedy") for _ in range(80)]
    assert len(_fill(admission_queue, greedy)) == 70
    with pytest.raises(Overloaded, match="this API key"):
        admission_queue.submit(greedy[0])
    admission_queue.submit(job(loop, inputs=1, tenant="modest"))
    for _ in range(9):
        admission_queue.submit(job(loop, inputs=1))


def test_the_wait_for_tokens_follows_the_pace_at_which_tokens_are_read(
    loop: asyncio.AbstractEventLoop,
) -> None:
    now = 0.0
    admission_queue = AdmissionQueue(EngineConfig(), lambda: now)
    large = [job(loop, inputs=10, length=40_000) for _ in range(10)]
    for each in large:
        admission_queue.submit(each)
    for each in large[:5]:
        now += 2.0
        admission_queue.mark_consumed(each)
    for _ in range(50):  # small ones, which are through at once, do not change it
        admission_queue.submit(small := job(loop, inputs=1))
        admission_queue.mark_consumed(small)
    with pytest.raises(Overloaded) as refused:
        admission_queue.submit(job(loop, inputs=100, length=40_000))
    assert refused.value.retry_after_seconds == 5


def test_a_borrower_of_the_turn_leaves_the_receiver_what_wakes_it() -> None:
    admission_queue = AdmissionQueue(EngineConfig())
    admission_queue.return_turn()  # as a receiver that waits
    for _ in range(2):
        assert admission_queue.borrow_turn()
        admission_queue.wake()
        assert admission_queue.receive(0) == []
        admission_queue.return_turn()
        assert not admission_queue.empty
    assert admission_queue.borrow_turn()  # as the receiver
    assert admission_queue.receive(None) == []
    assert admission_queue.empty
    admission_queue.return_turn()
    assert admission_queue.empty


def _fill(admission_queue: AdmissionQueue, jobs: list[Job]) -> list[Job]:
    """Submit jobs until one is refused, and return the others."""
    admitted: list[Job] = []
    with suppress(Overloaded):
        for each in jobs:
            admission_queue.submit(each)
            admitted.append(each)
    return admitted
