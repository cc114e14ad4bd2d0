"""Run one job for all inputs of a request: items in, a result for each out."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Protocol, Self, runtime_checkable

from sruserve.server.auth import Spent
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.sequence_input import PackedInputs, SequenceInput
from sruserve.server.engine.snapshot import StateOutput
from sruserve.server.errors import Refused
from sruserve.server.offload import LONG_CHARACTERS, MAX_INLINE_STATES
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.inputs import INPUT_CHARACTERS
from sruserve.server.tasks.limits import InputLimits, text_numbers
from sruserve.server.tasks.reading import carried_characters
from sruserve.server.tasks.requests import ModelRequest, Request

RunAhead = Callable[[Sequence[Any], Spent], Awaitable[list[Any]]]
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


@runtime_checkable
class PerInputTask(Protocol):
    """A task with one result for each input, in order."""

    @property
    def schema(self) -> type[ModelRequest]:
        """The fields of a request."""

    async def run(self, caller: Caller, request: Any, served: Any, cost: int) -> Results:
        """Compute the results of a request. cost: bytes of the request, for the queue."""

    def describe(self, served: Any, item: Any, result: Any) -> dict[str, Any]:
        """A result in plain values, which each protocol encodes in its own shape."""


async def compute(
    caller: Caller,
    request: Request,
    served: ServedModel,
    limits: InputLimits,
    cost: int,
    kind: JobKind,
    items: Sequence[SequenceInput],
    *,
    state_output: StateOutput,
    numbers: int = 0,
    advice: str | None = None,
    raw_scores: bool = False,
    n_best: int = 1,
    ahead: int = 0,
    run_ahead: RunAhead | None = None,
) -> Results:
    """Submit a job for the items of a request, and wait for their results.

    cost: bytes of the request, for the queue.
    state_output: of the request; a task asks the model for it before it reads the inputs.
    numbers: the approximate count of numbers in the results, if there can be many.
    advice: how to change a request whose reply would be too long; None: as the model says.
    ahead: further steps of each input, which `run_ahead` computes from the results.
    """
    if state_output is StateOutput.COPY:
        numbers += len(items) * served.state_numbers(state_output)
        numbers += sum(text_numbers(item.word) for item in items)
    if type(items) is not PackedInputs:
        starts = list(map(_START, items))
        cost += carried_characters(starts) if any(starts) else 0
    one_by_one: list[Any] = [None] * len(items)
    together: list[Sequence[Any]] = []
    job = Job(
        kind=kind,
        items=items,
        loop=caller.loop,
        deliver=one_by_one.__setitem__,
        done=caller.loop.create_future(),
        deliver_all=together.append,
        state_output=state_output,
        raw_scores=raw_scores,
        n_best=n_best,
        input_bytes=cost,
        deadline=limits.deadline(request.timeout_ms),
        priority=served.tenant.priority(request.priority),
        alone=caller.alone,
    )
    has_many_states = state_output is StateOutput.COPY and len(items) > MAX_INLINE_STATES
    size = numbers + INPUT_CHARACTERS * len(items)
    large = has_many_states or size > LONG_CHARACTERS
    unsent = caller.unsent(limits.reserve_reply(numbers, advice or served.chunks_or_fewer))
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
            if run_ahead is not None:  # what was read counts nowhere, so nothing refers to it
                items = job.items = [_without_inputs(each) for each in items]
                results = await run_ahead(results, spent)
                spent.used = steps = steps + ahead * len(items)
                if caller.observation is not None:
                    caller.observation.extend_steps()
    except BaseException:
        unsent.__exit__(None, None, None)
        raise
    return Results(items, results, steps, large, unsent)


def _without_inputs(item: SequenceInput) -> SequenceInput:
    return replace(item, inputs=item.inputs[:0].copy(), start=None)
