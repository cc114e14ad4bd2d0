"""What the routes of one task share: validate, choose the model, bound what is in memory."""

from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any, ClassVar, Generic, TypeVar

from sruserve.server.api.call import Call, Caller
from sruserve.server.api.catalogue import Catalogue
from sruserve.server.api.endpoint import Endpoint
from sruserve.server.api.inputs import (
    INPUT_CHARACTERS,
    Tokens,
    opens_long,
    read_part,
)
from sruserve.server.api.limits import InputLimits
from sruserve.server.api.requests import Request
from sruserve.server.api.served import Served
from sruserve.server.budget import Hold
from sruserve.server.engine.jobs import Snapshot
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
        request, cost = self._validate(body), len(body)
        del body
        served = self.choose(request).of(tenant)
        call.model = served.name
        served.check_admission(cost)
        with served.holders:
            await self.answer(call, request, served, cost)

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
        field: str,
        work: Callable[[int, int, Tokens | None], Sequence[T]],
        *,
        more: bool = False,
        locate: bool = False,
    ) -> list[T]:
        """Read the inputs of a body, long or many ones on a thread, in turns with others' work.

        starts: what each input goes on from; a word that it left unfinished is read with the input.
        work: turns the inputs from a first one up to another into items; it is told the tokens of a
            long text, which is then the only one.
        more: the texts go on, so their last words are unfinished.
        locate: the places of tokens are asked for.

        Raises `Overloaded` before that if so many inputs have no chance, and `InputTooLong` if
        one word is to be read so often that all are longer than a body may be.
        """
        size = words = 0
        for given, start in zip(inputs, starts, strict=True):
            size += len(given) + INPUT_CHARACTERS
            if start is not None:
                words += len(start.word)
        if size + words <= served.long_characters:
            return list(work(0, len(inputs), None))
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
            known, given, start = None, inputs[first], starts[first]
            if isinstance(given, str) and len(given) > _TURN and served.model.codec is not None:
                word = start.word if start is not None else ""
                known = await _by_parts(caller, served, given, word, field, more, locate)
            cost = size if known is None else _TURN
            found += await off_loop(
                True, work, first, end, known, cost=cost, caller=caller, pool=served.pool
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
    """Inputs in groups of about `_TURN`: the first of each, the end, its characters or ids.

    A longer input is alone.
    """
    first = size = 0
    for index, (each, start) in enumerate(zip(inputs, starts, strict=True)):
        if first < index and len(each) > _TURN:
            yield first, index, size
            first, size = index, 0
        size += len(each) + INPUT_CHARACTERS + (len(start.word) if start is not None else 0)
        if size >= _TURN or index + 1 == len(inputs):
            yield first, index + 1, size
            first, size = index + 1, 0


async def _by_parts(
    caller: Caller, served: Served, text: str, word: str, field: str, more: bool, locate: bool
) -> Tokens | None:
    """The tokens of a long text, part by part, each in a turn; None: it has one part alone."""
    codec, pool = served.model.codec, served.pool
    assert codec is not None
    parts = await off_loop(True, codec.parts, text, _TURN, cost=_TURN, caller=caller)
    if len(parts) == 1:
        return None
    found = []
    for number, part in enumerate(parts, 1):
        given = codec, part, word, more and number == len(parts), field, locate
        cost, word = len(word) + len(part), ""
        found.append(await off_loop(True, read_part, *given, cost=cost, caller=caller, pool=pool))
    return await off_loop(True, Tokens.joined, parts, found, cost=_TURN, caller=caller)
