"""`POST /v1/completions`: OpenAI's completions, whole or as events, and the state they end in."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from sruserve.server.api.call import Call
from sruserve.server.api.catalogue import Catalogue
from sruserve.server.api.completion_reply import Completion
from sruserve.server.api.completion_request import CompletionRequest
from sruserve.server.api.constraints import Constraints
from sruserve.server.api.events import Outbox, Room, next_stretches, send_events
from sruserve.server.api.inputs import Tokens, split_inputs
from sruserve.server.api.limits import InputLimits
from sruserve.server.api.prompts import (
    Prompt,
    choices_of,
    echo_numbers,
    new_numbers,
    read_prompt,
    states_numbers,
    token_numbers,
)
from sruserve.server.api.route import Route
from sruserve.server.api.sampling import check_completions, read_sampling
from sruserve.server.api.served import Served
from sruserve.server.engine.jobs import Item, Job, Kind, Sampling, Snapshot
from sruserve.server.errors import Refused
from sruserve.server.offload import off_loop
from sruserve.server.tenants import Spent, Tenants

_WAITING_STATES = 8  # those of a client that keeps up
_STREAM_NUMBERS = 1024  # that a stream may always have waiting: so much for a client that keeps up


class CompletionRoute(Route[CompletionRequest]):
    """`n` choices for each prompt: choice `p * n + i` is the i-th of prompt `p`."""

    path, task, schema = "/v1/completions", "generate", CompletionRequest

    def __init__(
        self,
        catalogue: Catalogue,
        tenants: Tenants,
        limits: InputLimits,
        ping_seconds: float,
        constraints: Constraints,
    ) -> None:
        super().__init__(catalogue, tenants, limits)
        self._ping_seconds = ping_seconds
        self._constraints = constraints

    async def answer(
        self, call: Call, request: CompletionRequest, served: Served, cost: int
    ) -> None:
        async with self.begun(call, request, served, cost) as completion:
            done, outbox = completion.done, completion.outbox
            if outbox is None:
                await call.wait(done)
                much = completion.is_much(completion.pieces)
                await call.reply(await off_loop(much, completion.whole, caller=call))
                return
            await send_events(call, done, outbox, completion, self._ping_seconds)

    async def parts(
        self, call: Call, request: CompletionRequest, served: Served, cost: int
    ) -> AsyncGenerator[dict[str, Any], None]:
        """What a streamed request is told, piece by piece; the last piece has the usage.

        Each is `choices`, with one in it. Whoever stops listening withdraws the job.
        """
        async with self.begun(call, request, served, cost) as completion:
            done, outbox = completion.done, completion.outbox
            assert outbox is not None, "the request does not stream"
            call.watch(done)
            try:
                wait = self._ping_seconds
                while (pieces := await next_stretches(call, done, outbox, wait)) is not None:
                    much = completion.is_much([piece for _, piece in pieces])
                    for part in await off_loop(much, completion.parts, pieces):
                        yield part
            finally:
                call.unwatch()

    @asynccontextmanager
    async def begun(
        self, call: Call, request: CompletionRequest, served: Served, cost: int
    ) -> AsyncIterator[Completion]:
        """A completion that the engine works at; it is withdrawn if the block ends first."""
        deadline, keep = self.deadline(request), served.keep(request)
        given = split_inputs(request.prompt, self.limits, "prompt")
        check_completions(request, len(given) * (request.n or 1), self.limits)
        constraint = await self._constraints.of(call, request, served, deadline, cost)
        sampling = read_sampling(request, served, constraint)
        prompts = await self._prompts(call, request, served, given, cost)
        state_numbers = states_numbers(prompts, request, served.state_numbers(keep))
        waiting_states = self._waiting_states(request, state_numbers)
        items = choices_of(prompts, request)
        read = sum(len(item.inputs) for item in items)
        if request.echoes_logprobs:
            read += sum(len(prompt.ids) for prompt in prompts)
        numbers = new_numbers(prompts, request)
        if request.stream and not call.keeps:  # more is counted as it waits for the client
            numbers = min(numbers, _STREAM_NUMBERS, self.limits.reply_numbers // 2)
        free = numbers
        numbers += waiting_states * state_numbers + echo_numbers(prompts, request)
        advice = "lower `max_tokens`, `n` or `logprobs`, or send fewer or shorter prompts"
        hold = self.promise(numbers, advice)
        with (
            call.unsent(hold),
            served.tenant.spend(read + len(items) * request.token_limit) as spent,
        ):
            if request.echoes_logprobs:
                prompts = await self._scored(call, request, served, prompts, deadline, spent)
                deadline = 0.0  # the request has begun
            done = call.loop.create_future()
            outbox = None
            if request.stream:
                room = Room(hold, free, token_numbers(request), self.limits.reply_numbers)
                outbox = Outbox(done, waiting_states, room)
            first_text = self.metrics(served.name).first_character
            completion = Completion(call, served, request, prompts, done, outbox, first_text)
            job = Job(
                kind=Kind.GENERATE,
                items=items,
                loop=call.loop,
                deliver=completion.deliver,
                done=done,
                keep=keep,
                stream=outbox is not None,
                sampling=sampling,
                cost=cost + sum(_text_bytes(prompt.start) for prompt in prompts),
                deadline=deadline,
                priority=served.tenant.priority(request.priority),
            )
            served.submit(job)
            call.submitted()
            spent.used = None
            request.let_go()  # from here on, the job alone holds what it has not read yet
            del given, prompts, items, job
            try:
                yield completion
            finally:
                # Where nothing was told, because the client left or at an error, nobody knows how
                # much was used.
                told = done.done() and not done.cancelled() and done.exception() is None
                if request.stream or told:
                    spent.used = read + completion.generated
                done.cancel()  # does nothing to a job that has ended

    async def _prompts(
        self,
        call: Call,
        request: CompletionRequest,
        served: Served,
        given: Sequence[str | list[int]],
        cost: int,
    ) -> list[Prompt]:
        """The prompts, each with its state."""
        starts = await self.starts(call, request, served, len(given), cost)

        def read(first: int, end: int, known: Tokens | None) -> list[Prompt]:
            some = zip(given[first:end], starts[first:end], strict=True)
            return [read_prompt(request, served, one, start, known) for one, start in some]

        return await self.read_inputs(
            call, served, given, starts, "prompt", read, locate=request.echoes_logprobs
        )

    async def _scored(
        self,
        call: Call,
        request: CompletionRequest,
        served: Served,
        prompts: Sequence[Prompt],
        deadline: float,
        spent: Spent,
    ) -> list[Prompt]:
        """The prompts with the log-probabilities of their tokens: read once more, to be scored.

        spent: counts them, unless the server refuses to score them.
        """
        results: list[Any] = [None] * len(prompts)
        job = Job(
            kind=Kind.SCORE,
            items=[Item(prompt.ids, prompt.start, prompt.word) for prompt in prompts],
            loop=call.loop,
            deliver=results.__setitem__,
            done=call.loop.create_future(),
            sampling=Sampling(logprobs=request.logprobs),
            deadline=deadline,
            priority=served.tenant.priority(request.priority),
        )
        served.submit(job)
        spent.used = job.inputs  # also if the client leaves
        try:
            await call.wait(job.done)
        except Refused:
            spent.used = 0
            raise
        spent.least = job.inputs
        return [
            replace(prompt, logprobs=result.logprobs)
            for prompt, result in zip(prompts, results, strict=True)
        ]

    def _waiting_states(self, request: CompletionRequest, numbers: int) -> int:
        """How many states of each choice may wait for the client, `numbers` being in one of all."""
        if not request.state_interval:
            return 1
        return max(1, min(_WAITING_STATES, self.limits.reply_numbers // max(1, numbers)))


def _text_bytes(start: Snapshot | None) -> int:
    """Bytes of the texts that a state brings; the choices of a prompt share them."""
    return 0 if start is None else len(start.word) + len(start.spelled)
