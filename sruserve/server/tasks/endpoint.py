"""The base of all protocols' endpoints: authenticate, count the outcome, report errors."""

from asyncio import CancelledError
from collections.abc import Iterable
from contextlib import suppress
from time import perf_counter
from typing import ClassVar, Generic, TypeVar

from pydantic import BaseModel

from sruserve.server.auth import Tenant, Tenants
from sruserve.server.errors import Draining, ServeError, faults
from sruserve.server.metrics.metrics import RouteMetrics
from sruserve.server.observation.observer import RequestObserver
from sruserve.server.offload import owner
from sruserve.server.tasks.caller import Caller, ClientDisconnected
from sruserve.server.tasks.error_mapping import as_serve_error
from sruserve.server.unheard import forget_frames

C = TypeVar("C", bound=Caller)


class Endpoint(Generic[C]):
    """The endpoint of one kind of requests. Subclasses implement `serve` and `refuse`.

    path: the name of the route in metrics.
    schema: the fields of its body, for error messages.
    models: names of models whose metrics are exported before their first request.
    observer: of all requests of this process; None: they are neither logged nor traced.
    """

    observer: ClassVar[RequestObserver | None] = None

    path: str
    schema: type[BaseModel]

    def __init__(self, tenants: Tenants, models: Iterable[str] = ()) -> None:
        self.tenants = tenants
        self._metrics: dict[str, RouteMetrics] = {}
        for name in models:
            self.metrics(name)

    async def __call__(self, call: C) -> None:
        """Answer a request in any case, and count it once."""
        if (observer := Endpoint.observer) is not None:
            call.observation = observer.begin(self.path, call.begin)
        outcome, reason = "error", None
        try:
            tenant = self.tenants.authenticate(call.authorization)
            tenant.admit()
            owner.set(tenant.owner)
            await self.serve(call, tenant)
            outcome = "ok"
        except ClientDisconnected:
            outcome = "cancelled"
            self.metrics(call.model).disconnected()
        except faults() as error:
            outcome, reason = await self._report(call, error)
        except CancelledError:  # the server is stopping and does not wait for this client
            outcome = "cancelled"
            if not call.started:
                outcome, reason = Draining.outcome, Draining.code
                problem = Draining("the server is stopping; send the request again")
                await self._send_refusal(call, problem)
        finally:
            call.submitted()
            metrics = self._metrics.get(call.model) or self.metrics(call.model)
            metrics.finish(outcome, perf_counter() - call.begin, reason)
            if call.observation is not None:
                call.observation.end(call.describe(), call.model, outcome, reason)

    async def serve(self, call: C, tenant: Tenant) -> None:
        """Send the reply to a tenant's request, or raise; set `call.model` once it is known."""
        raise NotImplementedError

    async def _report(self, call: C, error: BaseException) -> tuple[str, str]:
        """Answer with the error unless a reply has begun; returns outcome and code."""
        problem = as_serve_error(error, self.schema)
        for failure in (error, problem):
            forget_frames(failure)
        if not call.started:
            await self._send_refusal(call, problem)
        return problem.outcome, problem.code

    async def _send_refusal(self, call: C, problem: ServeError) -> None:
        """Answer with an error; if the client has left, the outcome is still that of the error."""
        with suppress(ClientDisconnected):
            await self.refuse(call, problem)

    async def refuse(self, call: C, problem: ServeError) -> None:
        """Answer with an error in the protocol's own shape."""
        raise NotImplementedError

    def metrics(self, model_name: str) -> RouteMetrics:
        """The metrics of a served model, or of `UNKNOWN_MODEL`."""
        if model_name not in self._metrics:
            self._metrics[model_name] = RouteMetrics(model_name, self.path)
        return self._metrics[model_name]
