"""What the routes of one task share: validate, choose the model, bound what is in memory."""

from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any, ClassVar, Generic, TypeVar

from sruserve.server.api.call import Call, Caller
from sruserve.server.api.catalogue import Catalogue
from sruserve.server.api.endpoint import Endpoint
from sruserve.server.api.inputs import (
    INPUT_CHARACTERS,
    is_long,
    opens_long,
    word_characters,
)
from sruserve.server.api.limits import InputLimits
from sruserve.server.api.requests import Request
from sruserve.server.api.served import Served
from sruserve.server.budget import Hold
from sruserve.server.engine.jobs import Job, Snapshot
from sruserve.server.errors import InputTooLong
from sruserve.server.metrics import UNKNOWN_MODEL
from sruserve.server.offload import off_loop
from sruserve.server.tenants import Tenant, Tenants

Body = TypeVar("Body", bound=Request)
T = TypeVar("T")

_TURN = 8 << 10  # characters and ids that are read in one turn on a thread: some milliseconds


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
        self._validate: Callable[[bytes], Body] = self.schema.__pydantic_validator__.validate_json

    async def serve(self, call: Call, tenant: Tenant) -> None:
        body = await call.json_body(self.limits)
        request = self._validate(body)
        served = self.choose(request).of(tenant)
        call.model = served.name
        served.check_admission(len(body))
        with served.holders:
            await self.answer(call, request, served, len(body))

    def choose(self, request: Any) -> Served:
        """The model that is to answer, or an error that says why there is none."""
        return self.catalogue.choose(request.model, self.task, *self.other_tasks)

    async def answer(self, call: Call, request: Body, served: Served, cost: int) -> None:
        """Send the reply to a valid request, or raise."""
        raise NotImplementedError

    async def starts(
        self, caller: Caller, request: Request, served: Served, count: int, cost: int
    ) -> list[Snapshot | None]:
        """`Served.starts`, away from the event loop if its states are many or long."""
        long = opens_long(request.state)
        return await off_loop(long, served.starts, request, count, cost=cost, caller=caller)

    async def read_inputs(
        self,
        caller: Caller,
        served: Served,
        inputs: Sequence[str | list[int]],
        starts: Sequence[Snapshot | None],
        work: Callable[[int, int], Sequence[T]],
    ) -> list[T]:
        """Read the inputs of a body, long or many ones on a thread, in turns with others' work.

        starts: what each input goes on from; a word that it left unfinished is read with the input.
        work: turns the inputs from a first one up to another into items.

        Raises `Overloaded` before that if so many inputs have no chance, and `InputTooLong` if
        one word is to be read so often that all are longer than a body may be.
        """
        words = word_characters(starts)
        if not is_long(served, inputs, starts):
            return list(work(0, len(inputs)))
        most = self.limits.body_bytes
        if words > most and len(inputs) > 1:
            raise InputTooLong(
                f"the words that the states left unfinished have {words} characters, each counted "
                f"for every input that continues it, and may have {most}: send fewer inputs, or "
                "ask the operator to raise SRUSERVE_MAX_BODY_BYTES"
            )
        caller.count_more(self.limits, words)
        served.check_admission(words, len(inputs))
        found: list[T] = []
        for first, end, size in _turns(inputs, starts):
            found += await off_loop(
                True, work, first, end, cost=size, caller=caller, pool=served.pool
            )
        return found

    def promise(
        self, numbers: int, advice: str = "send chunks with `state`, or fewer inputs"
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
        return self.limits.count_reply(numbers)

    def deadline(self, request: Request) -> float:
        """When a job that has not begun is given up, on `time.monotonic()`; 0 is never."""
        limits = [self.limits.queue_seconds, (request.timeout_ms or 0) / 1000]
        seconds = min((limit for limit in limits if limit), default=0.0)
        return monotonic() + seconds if seconds else 0.0


def _turns(
    inputs: Sequence[str | list[int]], starts: Sequence[Snapshot | None]
) -> Iterator[tuple[int, int, int]]:
    """Inputs in groups of about `_TURN`: the first of each, the end, its characters or ids."""
    first = size = 0
    for index, (each, start) in enumerate(zip(inputs, starts, strict=True)):
        size += len(each) + INPUT_CHARACTERS + (len(start.word) if start is not None else 0)
        if size >= _TURN or index + 1 == len(inputs):
            yield first, index + 1, size
            first, size = index + 1, 0


async def run_job(caller: Caller, served: Served, job: Job) -> None:
    """Hand a job to the engine and wait until its last result was delivered."""
    served.submit(job)
    await caller.wait(job.done)
