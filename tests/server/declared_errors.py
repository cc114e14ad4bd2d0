"""See whether routes answer with the errors that they declare."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sruserve.server.app import ROUTES
from sruserve.server.errors import ServeError
from sruserve.server.http.call import HttpCall
from sruserve.server.http.endpoint import HttpEndpoint
from sruserve.server.http.routes import ANY_REQUEST, ERROR_SHAPE, Route

# A fixed path comes before one with a parameter, as "{" is after all letters.
PATTERNS = [
    (route, re.compile(re.sub(r"\{\w+\}", "[^/]+", route.path)))
    for route in sorted(ROUTES, key=lambda route: route.path)
]


def route_of(call: HttpCall) -> Route[Any] | None:
    """The route that answers a request, if one does."""
    fitting = (route for route, pattern in PATTERNS if pattern.fullmatch(call.path))
    return next((route for route in fitting if route.method == call.method), None)


def statuses(route: Route[Any], error: type[ServeError]) -> set[int]:
    """The statuses that a route declares for an error."""
    shapes = [ERROR_SHAPE] * (error in ANY_REQUEST) + [route.error_shape] * (error in route.errors)
    return {shape.status(error) for shape in shapes}


@contextmanager
def undeclared_errors(patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The errors that routes answer with, by HTTP, and do not declare with that status."""
    undeclared: list[str] = []
    refuse, finish = HttpCall.refuse_as, HttpEndpoint._report

    def check(call: HttpCall, error: ServeError, status: int | None = None) -> None:
        route = route_of(call) if call._scope.get("type") == "http" else None
        if route is None:
            return
        declared = statuses(route, type(error))
        if not declared or status not in {None, *declared}:
            undeclared.append(f"{route.method} {route.path}: {error!r} with status {status}")

    async def refuse_and_check(call: HttpCall, error: ServeError, status: int, body: bytes) -> None:
        check(call, error, status)
        await refuse(call, error, status, body)

    async def finish_and_check(
        endpoint: HttpEndpoint, call: HttpCall, error: BaseException
    ) -> tuple[str, str]:
        if call.started and isinstance(error, ServeError):  # the last event says it
            check(call, error)
        return await finish(endpoint, call, error)

    patch.setattr(HttpCall, "refuse_as", refuse_and_check)
    patch.setattr(HttpEndpoint, "_report", finish_and_check)
    yield undeclared
