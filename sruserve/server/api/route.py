"""What all hot routes share: validate, choose the model, count the outcome, tell every error."""

from asyncio import CancelledError, to_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, perf_counter
from typing import Any, ClassVar, Generic, TypeVar

from sruserve.server.api.call import Call, Caller, ClientGone
from sruserve.server.api.problems import as_serve_error
from sruserve.server.api.requests import Request
from sruserve.server.api.served import Catalogue, InputLimits, Served
from sruserve.server.engine.jobs import Job
from sruserve.server.errors import Draining, InputTooLong, Overloaded
from sruserve.server.metrics import UNKNOWN_MODEL, RouteMetrics
from sruserve.server.tenants import Tenants

Body = TypeVar("Body", bound=Request)
T = TypeVar("T")


class Route(Generic[Body]):
    """`POST path` for models of one task. Subclasses answer; this class does the rest."""

    path: ClassVar[str]
    task: ClassVar[str]
    schema: ClassVar[type[Request]]

    def __init__(self, catalogue: Catalogue, tenants: Tenants, limits: InputLimits) -> None:
        self.catalogue = catalogue
        self.tenants = tenants
        self.limits = limits
        self._reading_bytes = 0  # of the bodies that other threads read, or that wait for one
        self._unsent_numbers = 0  # of the replies that are made, or that wait for their clients
        self._validate: Callable[[bytes], Body] = self.schema.__pydantic_validator__.validate_json
        self._metrics: dict[str, RouteMetrics] = {}
        for name in catalogue:  # so that what has not happened yet is exported as 0
            self.metrics(name)

    async def __call__(self, call: Call) -> None:
        """Answer a request, whatever happens, and count it once."""
        name, outcome, reason = UNKNOWN_MODEL, "ok", None
        try:
            tenant = self.tenants.of(call.header(b"authorization"))
            tenant.admit()
            body = await call.body(self.limits.body_bytes)
            request = self._validate(body)
            served = self.choose(request).of(tenant)
            name = served.name
            served.engine.check_admission(len(body))
            await self.answer(call, request, served, len(body))
        except ClientGone:
            outcome = "cancelled"
            self.metrics(name).disconnected()
        except Exception as error:
            problem = as_serve_error(error, self.schema)
            outcome, reason = problem.outcome, problem.code
            if not call.started:
                await call.refuse(problem)
        except CancelledError:  # the server is stopping, and no longer waits for this client
            outcome = "cancelled"
            if not call.started:
                outcome, reason = Draining.outcome, Draining.code
                await call.refuse(Draining("the server is stopping; send the request again"))
        finally:
            self.metrics(name).finish(outcome, perf_counter() - call.begin, reason)

    def choose(self, request: Any) -> Served:
        """The model that is to answer, or an error that says why there is none."""
        return self.catalogue.choose(request.model, self.task)

    async def answer(self, call: Call, request: Body, served: Served, cost: int) -> None:
        """Send the reply to a valid request, or raise."""
        raise NotImplementedError

    async def read(self, long: bool, cost: int, work: Callable[..., T], *given: Any) -> T:
        """Make a body of `cost` bytes into items: `off_loop`, as far as the queue's bytes go.

        Such bodies are in memory and not yet in the queue, so they have a bound of their own.
        """
        if not long:
            return work(*given)
        if self._reading_bytes and self._reading_bytes + cost > self.limits.queue_bytes:
            raise Overloaded(
                "the inputs that are being read are as long as SRUSERVE_MAX_QUEUE_BYTES allows; "
                "retry after a moment, or send less at a time"
            )
        self._reading_bytes += cost
        try:
            return await to_thread(work, *given)
        finally:
            self._reading_bytes -= cost

    @contextmanager
    def promise(self, numbers: int) -> Iterator[None]:
        """Make and send a reply of about so many numbers, if neither it nor all are too many.

        Results are in memory until their client has taken them, however short its request was.
        """
        most = self.limits.reply_numbers
        if numbers > most:
            raise InputTooLong(
                f"the reply would hold {numbers} numbers and may hold {most}: send chunks with "
                "`state`, or fewer inputs, or ask the operator to raise SRUSERVE_MAX_BODY_BYTES"
            )
        if self._unsent_numbers and self._unsent_numbers + numbers > self.limits.unsent_numbers:
            raise Overloaded(
                "the replies that are not yet sent are as long as SRUSERVE_MAX_QUEUE_BYTES allows; "
                "retry after a moment, or ask for less at a time"
            )
        self._unsent_numbers += numbers
        try:
            yield
        finally:
            self._unsent_numbers -= numbers

    def deadline(self, request: Request) -> float:
        """When a job that has not begun is given up, on `time.monotonic()`; 0 is never."""
        limits = [self.limits.queue_seconds, (request.timeout_ms or 0) / 1000]
        seconds = min((limit for limit in limits if limit), default=0.0)
        return monotonic() + seconds if seconds else 0.0

    def metrics(self, model_name: str) -> RouteMetrics:
        """What counts the requests of a served model, or of `UNKNOWN_MODEL`."""
        if model_name not in self._metrics:
            self._metrics[model_name] = RouteMetrics(model_name, self.path)
        return self._metrics[model_name]


async def off_loop(long: bool, work: Callable[..., T], *given: Any) -> T:
    """Do `work` here if it is short, on another thread if it would hold up the event loop."""
    return await to_thread(work, *given) if long else work(*given)


async def run_job(caller: Caller, served: Served, job: Job) -> None:
    """Hand a job to the engine and wait until its last result was delivered."""
    served.engine.submit(job)
    await caller.wait(job.done)
