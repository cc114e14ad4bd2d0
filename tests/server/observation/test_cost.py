"""What a request costs that is logged, in calls of functions: no clock.

`test_calls.py` counts those of a request that is not observed.
"""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sruserve.server.observation.observation import Observation
from tests.server.conftest import Serve
from tests.server.observation.clients import ROUTES
from tests.server.observing import until
from tests.server.test_calls import Calls
from tests.server.warm_requests import (
    OneWriteClient,
    Work,
    classifications,
    held_steps,
    profiled,
)

_LOGGED = 65  # of all threads: 28 where requests follow each other closely, more on a slow machine

Count = Callable[..., int]


@pytest.fixture
def calls_of_a_request(serve: Serve, capfd: pytest.CaptureFixture[str]) -> Iterator[Count]:
    """Counts the calls of a warm request to a server with some settings."""

    def count(work: Callable[[OneWriteClient], Work], **settings: Any) -> int:
        calls = Calls()
        with profiled(serve, calls.see, **settings) as client:
            return calls.of_warm(work(client))

    yield count
    assert "sruserve.requests" in capfd.readouterr().out


@pytest.mark.parametrize("work", [classifications, held_steps])
def test_a_line_costs_few_calls(
    calls_of_a_request: Count, work: Callable[[OneWriteClient], Work]
) -> None:
    without = calls_of_a_request(work)
    assert calls_of_a_request(work, access_log=True) <= without + _LOGGED


def test_nothing_stays_of_requests_that_were_observed(
    serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    def alive() -> int:
        return sum(type(each) is Observation for each in gc.get_objects())

    with serve("question", "characters", access_log=True) as (client, _):
        gc.collect()
        before = alive()  # of other servers' threads
        gc.disable()  # a cycle would stay, too
        try:
            for name in ("classify", "complete", "stream", "step", "infer", "talk"):
                for _ in range(5):
                    ROUTES[name][0](client, "", "who what", {})
            body = {"model": "characters", "prompt": "a", "max_tokens": 100_000, "stream": True}
            with client.stream("POST", "/v1/completions", json=body) as reply:
                next(reply.iter_raw())  # the client leaves after this
            until(lambda: alive() <= before)
        finally:
            gc.enable()
    assert capfd.readouterr().out.count("sruserve.requests") == 5 * 8 + 1
