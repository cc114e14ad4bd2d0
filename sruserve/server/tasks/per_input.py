"""The base of all tasks with a result for each input or chunk."""

from collections.abc import Awaitable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar, Self, TypeVar

from sruserve.server.auth import Spent
from sruserve.server.engine.job import (
    Job,
    JobKind,
    PackedInputs,
    SequenceInput,
    StateOutput,
)
from sruserve.server.errors import Refused
from sruserve.server.offload import LONG_CHARACTERS, MAX_INLINE_STATES
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.inputs import INPUT_CHARACTERS
from sruserve.server.tasks.limits import text_numbers
from sruserve.server.tasks.requests import Request
from sruserve.server.tasks.task import AnyBody, BaseTask, Task, carried_characters

Body = TypeVar("Body", bound=Request)
_START = attrgetter("start")


@dataclass(slots=True)
class Results:
    """The results of a request, a context manager: they count as unsent until its block ends.

    items, values: what was read, and the result of each.
    steps: the total number of steps.
    large: encoding a reply would block the event loop.
    unsent: counts the results.
    """

    items: Sequence[Any]
    values: Sequence[Any]
    steps: int
    large: bool
    unsent: AbstractContextManager[object]

    @property
    def results(self) -> list[tuple[Any, Any]]:
        """Each item with its result, in order."""
        return list(zip(self.items, self.values, strict=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unsent.__exit__(None, None, None)


class ResultTask(BaseTask[AnyBody]):
    """A task with one result for each input, in order."""

    async def run(self, caller: Caller, request: AnyBody, served: Any, cost: int) -> Results:
        """Compute the results of a request. cost: bytes of the request, for the queue."""
        raise NotImplementedError

    def describe(self, served: Any, item: Any, result: Any) -> dict[str, Any]:
        """A result in plain values, which each protocol encodes in its own shape."""
        raise NotImplementedError


class PerInputTask(ResultTask[Body], Task[Body]):
    """One result for each input, in order. Subclasses define the inputs and the results.

    advice: how to change a request whose reply would be too long; None: as the model says.
    """

    advice: ClassVar[str | None] = None

    async def run(
        self, caller: Caller, request: Body, served: ServedModel, cost: int, *, ahead: int = 0
    ) -> Results:
        """Compute the results of a request.

        cost: bytes of the request, for the queue.
        ahead: further steps of each input, which `run_ahead` computes.
        """
        state_output = served.state_output(request)
        items = await self.items(caller, request, served, cost)
        numbers = self.numbers(request, served, items)
        if state_output is StateOutput.COPY:
            numbers += len(items) * served.state_numbers(state_output)
            numbers += sum(text_numbers(item.word) for item in items)
        cost += self.added_bytes(items)
        one_by_one: list[Any] = [None] * len(items)
        together: list[Sequence[Any]] = []
        job = Job(
            kind=self.kind(request, served),
            items=items,
            loop=caller.loop,
            deliver=one_by_one.__setitem__,
            done=caller.loop.create_future(),
            deliver_all=together.append,
            state_output=state_output,
            input_bytes=cost,
            deadline=self.deadline(request),
            priority=served.tenant.priority(request.priority),
            # Without a state, the engine's thread is as quick on an idle machine, or quicker.
            alone=state_output is not StateOutput.NONE and caller.alone,
        )
        self.set_options(job, request)
        has_many_states = state_output is StateOutput.COPY and len(items) > MAX_INLINE_STATES
        size = numbers + INPUT_CHARACTERS * len(items)
        large = has_many_states or size > LONG_CHARACTERS
        unsent = caller.unsent(self.reserve_reply(numbers, self.advice or served.chunks_or_fewer))
        limit = job.inputs
        if ahead:
            limit += ahead * len(items)
        try:
            with served.tenant.spend(limit) as spent:
                served.submit(job)
                caller.submitted()
                if caller.observation is not None:
                    caller.observation.follow(job)
                spent.used = job.inputs if ahead else None
                try:
                    await caller.wait(job.done)
                except Refused:
                    if not job.begun:
                        spent.used = 0
                    raise
                results: Sequence[Any] = together[0] if together else one_by_one
                steps = job.inputs if together else 0
                if not together:
                    for result in results:
                        steps += result.steps
                spent.used = steps
                if ahead:  # what was read counts nowhere any more, so nothing refers to it
                    items = job.items = [_without_inputs(each) for each in items]
                    results = await self.run_ahead(caller, request, served, results, spent)
                    spent.used = steps = steps + ahead * len(items)
                    if caller.observation is not None:
                        caller.observation.extend_steps()
        except BaseException:
            unsent.__exit__(None, None, None)
            raise
        return Results(items, results, steps, large, unsent)

    async def run_ahead(
        self,
        caller: Caller,
        request: Body,
        served: ServedModel,
        results: Sequence[Any],
        spent: Spent,
    ) -> list[Any]:
        """The results with those of the steps after the inputs. spent: counts these steps, too."""
        raise NotImplementedError

    def items(
        self, caller: Caller, request: Body, served: ServedModel, cost: int
    ) -> Awaitable[Sequence[SequenceInput]]:
        """The inputs of the request with their states."""
        raise NotImplementedError

    def kind(self, request: Body, served: ServedModel) -> JobKind:
        """The kind of the job."""
        raise NotImplementedError

    def set_options(self, job: Job, request: Body) -> None:
        """Set what a request asks of the job's results beyond their kind."""

    def added_bytes(self, items: Sequence[SequenceInput]) -> int:
        """The bytes of items that count in the queue beside those of the request."""
        if type(items) is PackedInputs:
            return 0
        starts = list(map(_START, items))
        return carried_characters(starts) if any(starts) else 0

    def numbers(self, request: Body, served: ServedModel, items: Sequence[SequenceInput]) -> int:
        """The approximate count of numbers in the results of items, if there can be many."""
        del request, served, items
        return 0


def _without_inputs(item: SequenceInput) -> SequenceInput:
    return replace(item, inputs=item.inputs[:0].copy(), start=None)
