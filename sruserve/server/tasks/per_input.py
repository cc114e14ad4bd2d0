"""Tasks with a result for each input or chunk: what they share, and the simplest of them."""

from collections.abc import Awaitable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from sruserve.server.engine.job import Job, JobKind, SequenceInput, Snapshot, StateOutput
from sruserve.server.errors import InvalidRequest, Refused
from sruserve.server.repository.encoding import Tokens, encode_input
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.inputs import (
    INPUT_CHARACTERS,
    LONG_CHARACTERS,
    MANY_STATES,
    split_inputs,
)
from sruserve.server.tasks.limits import text_numbers
from sruserve.server.tasks.requests import ChunkRequest
from sruserve.server.tasks.task import Task, count_characters

Body = TypeVar("Body", bound=ChunkRequest)


@dataclass(slots=True)
class Results:
    """The results of a request. They count as unsent until their block ends: `with` them.

    results: each item with its result, in their order.
    steps: of all of them.
    large: making a reply of them would hold up the event loop.
    unsent: counts them.
    """

    results: Sequence[tuple[SequenceInput, Any]]
    steps: int
    large: bool
    unsent: AbstractContextManager[object]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unsent.__exit__(None, None, None)


class PerInputTask(Task[Body]):
    """One result for each input, in their order. Subclasses say what a result is.

    locates: results say where in a text its tokens are.
    """

    locates: ClassVar[bool] = False

    async def run(self, caller: Caller, request: Body, served: ServedModel, cost: int) -> Results:
        """Compute the results of a request. `cost`: bytes of the request, for the queue."""
        keep = served.state_output(request)
        items = await self.items(caller, request, served, cost)
        numbers = len(items) * served.state_numbers(keep)
        for item in items:
            numbers += self.numbers(served, item)
            if keep is StateOutput.COPY:
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
            state_output=keep,
            input_bytes=cost,
            deadline=self.deadline(request),
            priority=served.tenant.priority(request.priority),
        )
        many = keep is StateOutput.COPY and len(items) > MANY_STATES
        size = numbers + INPUT_CHARACTERS * len(items)
        large = many or size > LONG_CHARACTERS
        unsent = caller.unsent(self.reserve_reply(numbers))
        try:
            with served.tenant.spend(job.inputs) as spent:
                served.submit(job)
                caller.submitted()
                spent.used = None
                try:
                    await caller.wait(job.done)
                except Refused:
                    if not job.begun:
                        spent.used = 0
                    raise
                steps = 0
                for result in results:
                    steps += result.steps
                spent.used = steps
        except BaseException:
            unsent.__exit__(None, None, None)
            raise
        return Results(list(zip(items, results, strict=True)), steps, large, unsent)

    def items(
        self, caller: Caller, request: Body, served: ServedModel, cost: int
    ) -> Awaitable[Sequence[SequenceInput]]:
        """What the request asks to be read."""
        return self._text_items(caller, request, served, cost)

    async def _text_items(
        self, caller: Caller, request: Body, served: ServedModel, cost: int
    ) -> Sequence[SequenceInput]:
        if request.input is None:
            raise InvalidRequest("'input' is missing: send a text", param="input")
        inputs = split_inputs(request.input, self.limits, "input")
        starts = await self.starts(caller, request, served, len(inputs), cost)
        if sum(count_characters(inputs, starts)) <= served.long_characters:
            return [
                self.text_item(request, served, given, start, None)
                for given, start in zip(inputs, starts, strict=True)
            ]

        def read(first: int, end: int, known: Tokens | None) -> list[SequenceInput]:
            some = zip(inputs[first:end], starts[first:end], strict=True)
            return [self.text_item(request, served, given, start, known) for given, start in some]

        return await self.read_inputs(
            caller, served, inputs, starts, "input", read, more=request.more, locate=self.locates
        )

    def text_item(
        self,
        request: Body,
        served: ServedModel,
        given: str | list[int],
        start: Snapshot | None,
        known: Tokens | None,
    ) -> SequenceInput:
        """The item of a text or a list of ids. known: what a long text was read as already."""
        ids, word = encode_input(served, given, start, "input", request.more, known)
        return SequenceInput(ids, start, word, request.more)

    def kind(self, request: Body) -> JobKind:
        """What the job asks of the model."""
        raise NotImplementedError

    def numbers(self, served: ServedModel, item: SequenceInput) -> int:
        """How many numbers, about, a reply says of one item, where they can be many."""
        del served, item
        return 0

    def describe(self, served: ServedModel, item: Any, result: Any) -> dict[str, Any]:
        """A result in plain values, which every protocol tells in its own shape."""
        raise NotImplementedError
