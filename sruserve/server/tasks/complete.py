"""Complete: continuations of prompts, whole or chunk by chunk, and the states they end in."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from sruserve.server.auth import Spent
from sruserve.server.engine.job import Job, JobKind, Sampling, SequenceInput, Snapshot
from sruserve.server.errors import Refused
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.repository.encoding import Tokens
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.chunks import ChunkBuffer, Room
from sruserve.server.tasks.completion import Completion
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.constraint_cache import ConstraintCache
from sruserve.server.tasks.inputs import split_inputs
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.prompts import (
    Prompt,
    choices_of,
    echo_numbers,
    new_numbers,
    read_prompt,
    states_numbers,
    token_numbers,
)
from sruserve.server.tasks.sampling_params import check_completions, read_sampling
from sruserve.server.tasks.task import Task

_WAITING_STATES = 8  # those of a client that keeps up
_STREAM_NUMBERS = 1024  # that a stream may always have waiting: so much for a client that keeps up


class CompleteTask(Task[CompletionRequest]):
    """`n` choices for each prompt: choice `p * n + i` is the i-th of prompt `p`."""

    name, schema = "generate", CompletionRequest

    def __init__(
        self, catalogue: Catalogue, limits: InputLimits, constraints: ConstraintCache
    ) -> None:
        super().__init__(catalogue, limits)
        self._constraints = constraints

    @asynccontextmanager
    async def run(
        self, caller: Caller, request: CompletionRequest, served: ServedModel, cost: int
    ) -> AsyncIterator[Completion]:
        """A completion that the engine works at; it is withdrawn if the block ends first."""
        deadline, keep = self.deadline(request), served.state_output(request)
        given = split_inputs(request.prompt, self.limits, "prompt")
        check_completions(request, len(given) * (request.n or 1), self.limits)
        constraint = await self._constraints.of(caller, request, served, deadline, cost)
        sampling = read_sampling(request, served, constraint)
        prompts = await self._prompts(caller, request, served, given, cost)
        state_numbers = states_numbers(prompts, request, served.state_numbers(keep))
        waiting_states = self._waiting_states(request, state_numbers)
        items = choices_of(prompts, request)
        read = sum(len(item.inputs) for item in items)
        if request.echoes_logprobs:
            read += sum(len(prompt.ids) for prompt in prompts)
        numbers = new_numbers(prompts, request)
        if request.stream and not caller.keeps:  # more is counted as it waits for the client
            numbers = min(numbers, _STREAM_NUMBERS, self.limits.reply_numbers // 2)
        free = numbers
        numbers += waiting_states * state_numbers + echo_numbers(prompts, request)
        advice = "lower `max_tokens`, `n` or `logprobs`, or send fewer or shorter prompts"
        hold = self.reserve_reply(numbers, advice)
        with (
            caller.unsent(hold),
            served.tenant.spend(read + len(items) * request.token_limit) as spent,
        ):
            if request.echoes_logprobs:
                prompts = await self._scored(caller, request, served, prompts, deadline, spent)
                deadline = 0.0  # the request has begun
            done = caller.loop.create_future()
            buffer = None
            if request.stream:
                room = Room(hold, free, token_numbers(request), self.limits.reply_numbers)
                buffer = ChunkBuffer(done, waiting_states, room)
            completion = Completion(caller, served, request, prompts, done, buffer)
            job = Job(
                kind=JobKind.GENERATE,
                items=items,
                loop=caller.loop,
                deliver=completion.deliver,
                done=done,
                state_output=keep,
                stream=buffer is not None,
                sampling=sampling,
                input_bytes=cost + sum(_text_bytes(prompt.start) for prompt in prompts),
                deadline=deadline,
                priority=served.tenant.priority(request.priority),
            )
            served.submit(job)
            caller.submitted()
            scored, spent.used = spent.used, None
            request.let_go()  # from here on, the job alone holds what it has not read yet
            del given, prompts, items
            try:
                yield completion
            finally:
                # Where nothing was told, because the client left or at an error, nobody knows how
                # much was used; a job that was refused before its first step has used nothing.
                ended = done.done() and not done.cancelled()
                error = done.exception() if ended else None
                if isinstance(error, Refused) and not job.begun:
                    spent.used = scored
                elif request.stream or (ended and error is None):
                    spent.used = read + completion.generated
                done.cancel()  # does nothing to a job that has ended

    async def _prompts(
        self,
        caller: Caller,
        request: CompletionRequest,
        served: ServedModel,
        given: Sequence[str | list[int]],
        cost: int,
    ) -> list[Prompt]:
        """The prompts, each with its state."""
        starts = await self.starts(caller, request, served, len(given), cost)

        def read(first: int, end: int, known: Tokens | None) -> list[Prompt]:
            some = zip(given[first:end], starts[first:end], strict=True)
            return [read_prompt(request, served, one, start, known) for one, start in some]

        return await self.read_inputs(
            caller, served, given, starts, "prompt", read, locate=request.echoes_logprobs
        )

    async def _scored(
        self,
        caller: Caller,
        request: CompletionRequest,
        served: ServedModel,
        prompts: Sequence[Prompt],
        deadline: float,
        spent: Spent,
    ) -> list[Prompt]:
        """The prompts with the log-probabilities of their tokens: read once more, to be scored.

        spent: counts them, unless the server refuses to score them.
        """
        results: list[Any] = [None] * len(prompts)
        job = Job(
            kind=JobKind.SCORE,
            items=[SequenceInput(prompt.ids, prompt.start, prompt.word) for prompt in prompts],
            loop=caller.loop,
            deliver=results.__setitem__,
            done=caller.loop.create_future(),
            sampling=Sampling(logprobs=request.logprobs),
            deadline=deadline,
            priority=served.tenant.priority(request.priority),
        )
        served.submit(job)
        spent.used = job.inputs  # also if the client leaves
        try:
            await caller.wait(job.done)
        except Refused:
            spent.used = 0
            raise
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
