"""What all routes but completions share: inputs, or chunks of them, and a result for each."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from sruserve.server.api.call import Call, Caller, json_bytes
from sruserve.server.api.inputs import (
    INPUT_CHARACTERS,
    LONG_CHARACTERS,
    MANY_STATES,
    Tokens,
    encode_input,
    sampler_key,
    split_inputs,
)
from sruserve.server.api.limits import text_numbers
from sruserve.server.api.long_json import long_json
from sruserve.server.api.requests import ChunkRequest
from sruserve.server.api.route import Route
from sruserve.server.api.served import Served
from sruserve.server.engine.jobs import Item, Job, Keep, Kind, Snapshot
from sruserve.server.errors import InvalidRequest
from sruserve.server.offload import off_loop

Body = TypeVar("Body", bound=ChunkRequest)


@dataclass(frozen=True, slots=True)
class Results:
    """What came of a request: each item with its result, and how many steps all of them took.

    much: making a reply of them would hold up the event loop.
    """

    told: Sequence[tuple[Item, Any]]
    steps: int
    much: bool


class TextRoute(Route[Body]):
    """One result for each input, in their order. Subclasses say what a result looks like.

    prefix: what the ids of replies begin with.
    locates: replies tell where in a text its tokens are.
    """

    prefix: ClassVar[str]
    locates: ClassVar[bool] = False

    async def answer(self, call: Call, request: Body, served: Served, cost: int) -> None:
        async with self.computed(call, request, served, cost) as results:
            much = results.much
            told = await off_loop(much, self._encode, call.number, served, results, caller=call)
            await call.reply(told)

    @asynccontextmanager
    async def computed(
        self, caller: Caller, request: Body, served: Served, cost: int
    ) -> AsyncIterator["Results"]:
        """The results of a request of any protocol; they count as unsent until the block ends."""
        keep = served.keep(request)
        items = await self.items(caller, request, served, cost)
        numbers = len(items) * served.state_numbers(keep)
        for item in items:
            numbers += self.numbers(served, item)
            if keep is Keep.SNAPSHOT:
                numbers += text_numbers(item.word)
            if item.start is not None:
                cost += len(item.start.word)
        results: list[Any] = [None] * len(items)
        job = Job(
            kind=self.kind(request),
            items=items,
            loop=caller.loop,
            deliver=results.__setitem__,
            done=caller.loop.create_future(),
            keep=keep,
            cost=cost,
            deadline=self.deadline(request),
            priority=served.tenant.priority(request.priority),
        )
        many = keep is Keep.SNAPSHOT and len(items) > MANY_STATES
        with caller.unsent(self.promise(numbers)):
            with served.tenant.spend(job.inputs) as spent:
                served.submit(job)
                caller.submitted()
                spent.used = None
                await caller.wait(job.done)
                steps = 0
                for result in results:
                    steps += result.steps
                spent.used = steps
            told = list(zip(items, results, strict=True))
            size = numbers + INPUT_CHARACTERS * len(items)
            yield Results(told, steps, many or size > LONG_CHARACTERS)

    async def items(
        self, caller: Caller, request: Body, served: Served, cost: int
    ) -> Sequence[Item]:
        """What the request asks to be read."""
        if request.input is None:
            raise InvalidRequest("'input' is missing: send a text", param="input")
        inputs = split_inputs(request.input, self.limits, "input")
        starts = await self.starts(caller, request, served, len(inputs), cost)

        def read(first: int, end: int, known: Tokens | None) -> list[Item]:
            some = zip(inputs[first:end], starts[first:end], strict=True)
            return [self.text_item(request, served, given, start, known) for given, start in some]

        return await self.read_inputs(
            caller, served, inputs, starts, "input", read, more=request.more, locate=self.locates
        )

    def text_item(
        self,
        request: Body,
        served: Served,
        given: str | list[int],
        start: Snapshot | None,
        known: Tokens | None,
    ) -> Item:
        """The item of a text or a list of ids. known: what a long text was read as already."""
        ids, word = encode_input(served, given, start, "input", request.more, known)
        return Item(ids, start, word, request.more, *sampler_key(start))

    def kind(self, request: Body) -> Kind:
        """What the job asks of the model."""
        raise NotImplementedError

    def numbers(self, served: Served, item: Item) -> int:
        """How many numbers, about, a reply says of one item, where they can be many."""
        del served, item
        return 0

    def result(self, served: Served, item: Any, result: Any) -> dict[str, Any]:
        """What the reply says of one item."""
        raise NotImplementedError

    def reply(self, number: str, served: Served, results: "Results") -> dict[str, Any]:
        """The reply's body."""
        return {
            "id": f"{self.prefix}-{number}",
            "model": served.name,
            "results": [self.result(served, item, result) for item, result in results.told],
            "usage": {"steps": results.steps},
        }

    def _encode(self, number: str, served: Served, results: "Results") -> bytes:
        return (long_json if results.much else json_bytes)(self.reply(number, served, results))
