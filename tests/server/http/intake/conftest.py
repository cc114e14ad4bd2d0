"""Servers that take little, and wait for few clients."""

from collections.abc import Iterator

import pytest

from tests.server.conftest import Serve
from tests.server.http.intake.bounds import BUDGET, LONGEST, Running
from tests.server.observing import until


@pytest.fixture(scope="module")
def running(serve: Serve) -> Iterator[Running]:
    """A server that takes little, and is patient."""
    with serve("characters", max_queue_bytes=BUDGET, max_body_bytes=LONGEST) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every byte is given back."""
    names = {"running", "hasty", "lenient"} & set(request.fixturenames)
    applications = [request.getfixturevalue(name)[1] for name in names]
    yield
    for application in applications:
        until(lambda app=application: app.intake.budget.used == 0)  # type: ignore[misc]
        until(lambda app=application: app.lifecycle.active == 0)  # type: ignore[misc]
        limits = application.limits
        until(lambda limits=limits: limits.reading.used == limits.replies.used == 0)  # type: ignore[misc]
