"""What a request costs that is logged, in calls of functions: no clock.

`test_calls.py` counts those of a request that is not observed.
"""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.server.conftest import Serve
from tests.server.test_calls import Calls
from tests.server.warm_requests import classifications, held_steps, profiled

_WARM, _COUNTED = 20, 100
_LOGGED = 40  # of all threads; about 28 are counted, and docs/logs-and-traces.md says so

Count = Callable[..., float]


@pytest.fixture
def calls_of_a_request(serve: Serve, capfd: pytest.CaptureFixture[str]) -> Iterator[Count]:
    """Counts the calls of a warm request to a server with some settings."""

    def count(work: Callable[[httpx.Client], Any], **settings: Any) -> float:
        calls = Calls()
        with profiled(serve, calls.see, **settings) as client:
            ask = work(client)
            ask(_WARM)
            return calls.of(lambda: ask(_COUNTED)) / _COUNTED

    yield count
    assert "sruserve.requests" in capfd.readouterr().out


@pytest.mark.parametrize("work", [classifications, held_steps])
def test_a_line_costs_few_calls(
    calls_of_a_request: Count, work: Callable[[httpx.Client], Any]
) -> None:
    without = calls_of_a_request(work)
    assert calls_of_a_request(work, access_log=True) <= without + _LOGGED
