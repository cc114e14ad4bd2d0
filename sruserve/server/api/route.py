"""What the routes of one task share: validate, choose the model, bound what is in memory."""

from asyncio import create_task, shield, to_thread
from collections.abc import Callable
from time import monotonic
from typing import Any, ClassVar, Generic, TypeVar

from sruserve.server.api.call import Call, Caller
from sruserve.server.api.catalogue import Catalogue
from sruserve.server.api.endpoint import Endpoint
from sruserve.server.api.limits import InputLimits
from sruserve.server.api.requests import Request
from sruserve.server.api.served import Served
from sruserve.server.budget import Hold
from sruserve.server.engine.jobs import Job
from sruserve.server.errors import InputTooLong, Overloaded
from sruserve.server.metrics import UNKNOWN_MODEL
from sruserve.server.tenants import Tenant, Tenants

Body = TypeVar("Body", bound=Request)
T = TypeVar("T")

LONG_BYTES = 64 << 10  # to parse or pack more would hold up the event loop


class Route(Endpoint, Generic[Body]):
    """`POST path` for models of one task. Subclasses answer a valid request.

    other_tasks: more tasks whose models it answers for.
    """

    task: ClassVar[str]
    other_tasks: ClassVar[tuple[str, ...]] = ()
    schema: ClassVar[type[Request]]

    def __init__(self, catalogue: Catalogue, tenants: Tenants, limits: InputLimits) -> None:
        super().__init__(tenants, (*catalogue.fitting(self.task, *self.other_tasks), UNKNOWN_MODEL))
        self.catalogue = catalogue
        self.limits = limits
        self._reading_bytes = 0  # of the bodies that other threads read, or that wait for one
        self._validate: Callable[[bytes], Body] = self.schema.__pydantic_validator__.validate_json

    async def serve(self, call: Call, tenant: Tenant) -> None:
        body = await call.json_body(self.limits.body_bytes)
        request = self._validate(body)
        served = self.choose(request).of(tenant)
        call.model = served.name
        served.engine.check_admission(len(body))
        with served.holders.one_more():
            await self.answer(call, request, served, len(body))

    def choose(self, request: Any) -> Served:
        """The model that is to answer, or an error that says why there is none."""
        return self.catalogue.choose(request.model, self.task, *self.other_tasks)

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

        def was_read(_: object) -> None:
            self._reading_bytes -= cost

        self._reading_bytes += cost
        reading = create_task(to_thread(work, *given))
        reading.add_done_callback(was_read)
        return await shield(reading)  # a thread goes on with it when nobody waits any more

    def promise(
        self,
        numbers: int,
        served: Served | None = None,
        advice: str = "send chunks with `state`, or fewer inputs",
    ) -> Hold:
        """Hold room for a reply of about so many numbers, before they are made.

        Results are in memory until their client has taken them, however short its request was.
        Raises `InputTooLong` if one reply may not have so many, `Overloaded` if all may not.

        advice: what to change in a request that asks for too much.
        """
        most = self.limits.reply_numbers
        if numbers > most:
            raise InputTooLong(
                f"the reply would hold {numbers} numbers and may hold {most}: {advice}, or ask the "
                "operator to raise SRUSERVE_MAX_BODY_BYTES"
            )
        return self.limits.replies.hold(numbers, served.tenant.name or None if served else None)

    def deadline(self, request: Request) -> float:
        """When a job that has not begun is given up, on `time.monotonic()`; 0 is never."""
        limits = [self.limits.queue_seconds, (request.timeout_ms or 0) / 1000]
        seconds = min((limit for limit in limits if limit), default=0.0)
        return monotonic() + seconds if seconds else 0.0


async def off_loop(long: bool, work: Callable[..., T], *given: Any) -> T:
    """Do `work` here if it is short, on another thread if it would hold up the event loop."""
    return await to_thread(work, *given) if long else work(*given)


async def run_job(caller: Caller, served: Served, job: Job) -> None:
    """Hand a job to the engine and wait until its last result was delivered."""
    served.submit(job)
    await caller.wait(job.done)
