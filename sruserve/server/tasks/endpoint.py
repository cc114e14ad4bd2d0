"""What an endpoint of any protocol does: know the tenant, count the outcome, report errors."""

from asyncio import CancelledError
from collections.abc import Iterable
from time import perf_counter
from typing import Generic, TypeVar

from pydantic import BaseModel

from sruserve.server.auth import Tenant, Tenants
from sruserve.server.errors import Draining, ServeError, faults
from sruserve.server.metrics.metrics import RouteMetrics
from sruserve.server.offload import owner
from sruserve.server.tasks.caller import Caller, ClientDisconnected
from sruserve.server.tasks.error_mapping import as_serve_error
from sruserve.server.unheard import forget_frames

C = TypeVar("C", bound=Caller)


class Endpoint(Generic[C]):
    """One kind of requests. Subclasses serve and refuse; this class does the rest.

    path: what the route is called in metrics.
    schema: the fields of its body, for what is said of a wrong one.
    models: names of models whose metrics are exported before anything has happened.
    """

    path: str
    schema: type[BaseModel]

    def __init__(self, tenants: Tenants, models: Iterable[str] = ()) -> None:
        self.tenants = tenants
        self._metrics: dict[str, RouteMetrics] = {}
        for name in models:
            self.metrics(name)

    async def __call__(self, call: C) -> None:
        """Answer a request, whatever happens, and count it once."""
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
            outcome, reason = await self._tell(call, error)
        except CancelledError:  # the server is stopping, and no longer waits for this client
            outcome = "cancelled"
            if not call.started:
                outcome, reason = Draining.outcome, Draining.code
                problem = Draining("the server is stopping; send the request again")
                await self.refuse(call, problem)
        finally:
            call.submitted()
            self.metrics(call.model).finish(outcome, perf_counter() - call.begin, reason)

    async def serve(self, call: C, tenant: Tenant) -> None:
        """Send the reply to a tenant's request, or raise; `call.model` is set when it is known."""
        raise NotImplementedError

    async def _tell(self, call: C, error: BaseException) -> tuple[str, str]:
        """Answer with what went wrong, if nothing was sent yet; tells outcome and code."""
        problem = as_serve_error(error, self.schema)
        for each in (error, problem):
            forget_frames(each)
        if not call.started:
            await self.refuse(call, problem)
        return problem.outcome, problem.code

    async def refuse(self, call: C, problem: ServeError) -> None:
        """Answer with an error in the protocol's own shape."""
        raise NotImplementedError

    def metrics(self, model_name: str) -> RouteMetrics:
        """What counts the requests of a served model, or of `UNKNOWN_MODEL`."""
        if model_name not in self._metrics:
            self._metrics[model_name] = RouteMetrics(model_name, self.path)
        return self._metrics[model_name]
