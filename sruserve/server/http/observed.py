"""Observe the requests that no `Endpoint` answers: pages, and those without a route."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from pydantic import BaseModel

from sruserve.server.errors import ServeError, faults
from sruserve.server.http.call import HttpCall
from sruserve.server.tasks.caller import ClientDisconnected
from sruserve.server.tasks.endpoint import Endpoint
from sruserve.server.tasks.error_mapping import as_serve_error

_NO_ROUTE = "none"  # in the place of a path, which is a client's text


class _Outcome:
    """How a request ended, as in the metrics."""

    name = "ok"
    reason: str | None = None

    def fail(self, problem: ServeError) -> None:
        """Record the error that the request is answered with."""
        self.name, self.reason = problem.outcome, problem.code


def answering_errors(
    handler: Callable[[HttpCall], Awaitable[None]], route: str | None = None
) -> Callable[[HttpCall], Awaitable[None]]:
    """Wrap a handler, so that errors are answered. No metric counts its requests.

    route: the template of its path; None: its requests are neither logged nor traced.
    """

    async def answer(call: HttpCall) -> None:
        with _observing(call, route) as outcome:
            try:
                await handler(call)
            except ClientDisconnected:
                outcome.name = "cancelled"
            except faults() as error:
                problem = as_serve_error(error, BaseModel)
                outcome.fail(problem)
                if call.started:
                    raise
                await call.refuse(problem)

    return answer


async def refuse(call: HttpCall, problem: ServeError) -> None:
    """Answer a request that has no route, or may not reach it."""
    with _observing(call, _NO_ROUTE) as outcome:
        outcome.fail(problem)
        await call.refuse(problem)


@contextmanager
def _observing(call: HttpCall, route: str | None) -> Iterator[_Outcome]:
    outcome = _Outcome()
    if route is not None and (observer := Endpoint.observer) is not None:
        call.observation = observer.begin(route, call.begin)
    try:
        yield outcome
    finally:
        if call.observation is not None:
            call.observation.end(call.describe(), call.model, outcome.name, outcome.reason)
