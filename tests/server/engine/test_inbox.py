"""The queue's way in, and when it asks to come back."""

import asyncio

import pytest

from sruserve.server.engine.inbox import Inbox
from sruserve.server.engine.jobs import Job, Kind
from sruserve.server.engine.limits import Limits
from sruserve.server.errors import Overloaded


def job(loop: asyncio.AbstractEventLoop) -> Job:
    return Job(Kind.SCORE, [], loop, lambda *_: None, loop.create_future())


@pytest.mark.parametrize(("pace", "told"), [(0.01, 1), (0.5, 5), (2.0, 19), (30.0, 60)])
def test_a_full_queue_asks_to_come_back_when_half_of_it_is_through(pace: float, told: int) -> None:
    now = 0.0
    loop = asyncio.new_event_loop()
    inbox = Inbox(Limits(max_queue_requests=20), lambda: now)
    for _ in range(10):
        one = job(loop)
        inbox.submit(one)
        now += pace
        inbox.leave(one)
        now += 1000  # nobody waits, so it tells nothing
    for _ in range(20):
        inbox.submit(job(loop))
    with pytest.raises(Overloaded) as refused:
        inbox.submit(job(loop))
    loop.close()
    assert refused.value.retry_after_seconds == told
    assert refused.value.headers["retry-after"] == str(told)
