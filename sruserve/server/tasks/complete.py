"""Complete: continue prompts, as a whole or chunk by chunk, and return the end states."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

from sruserve.server.auth import Spent
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import Refused
from sruserve.server.repository.encoding import Tokens
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.chunks import ChunkBuffer, Room
from sruserve.server.tasks.completion import CompletionResponse
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.inputs import split_inputs
from sruserve.server.tasks.prompts import (
    Prompt,
    choices_of,
    echo_numbers,
    new_numbers,
    read_prompt,
    states_numbers,
    token_numbers,
)
from sruserve.server.tasks.reading import initial_states, read_inputs
from sruserve.server.tasks.sampling_params import check_completions, read_sampling
from sruserve.server.tasks.task import Task

_ONE_JOB = nullcontext()
_WAITING_STATES = 8  # of a client that reads fast enough
_STREAM_NUMBERS = 1024  # that a stream may always have waiting: enough for a fast client


class CompleteTask(Task[CompletionRequest, ServedModel]):
    """`n` choices for each prompt: choice `p * n + i` is the i-th of prompt `p`."""

    name, schema = "generate", CompletionRequest
    route, prefix, streams = "completions", "cmpl", True

    @asynccontextmanager
    async def run(
        self, caller: Caller, request: CompletionRequest, served: ServedModel, cost: int
    ) -> AsyncIterator[CompletionResponse]:
        """Submit a completion to the engine; its job is cancelled if the block ends first."""
        deadline = self.limits.deadline(request.timeout_ms)
        state_output = served.state_output(request)
        inputs = split_inputs(request.prompt, self.limits, "prompt", served.chunks_or_parts)
        check_completions(request, len(inputs) * (request.n or 1), self.limits)
        constraint = await self.resources.constraints.of(caller, request, served, deadline, cost)
        sampling = read_sampling(request, served, constraint)
        prompts = await self._prompts(caller, request, served, inputs, cost)
        state_numbers = states_numbers(prompts, request, served.state_numbers(state_output))
        waiting_states = self._waiting_states(request, state_numbers)
        items = choices_of(prompts, request)
        read_tokens = sum(len(item.inputs) for item in items)
        if request.echoes_logprobs:
            read_tokens += sum(len(prompt.ids) for prompt in prompts)
        numbers = new_numbers(prompts, request)
        if request.stream and not caller.buffers_reply:  # further numbers count while they wait
            numbers = min(numbers, _STREAM_NUMBERS, self.limits.reply_numbers // 2)
        free = numbers
        numbers += waiting_states * state_numbers + echo_numbers(prompts, request)
        advice = "lower `max_tokens`, `n` or `logprobs`, or send fewer or shorter prompts"
        hold = self.limits.reserve_reply(numbers, advice)
        with (
            caller.unsent(hold),
            served.engine.continuing() if request.echoes_logprobs else _ONE_JOB,
            served.tenant.spend(read_tokens + len(items) * request.token_limit) as spending,
        ):
            if request.echoes_logprobs:
                prompts = await self._scored(caller, request, served, prompts, deadline, spending)
                deadline = 0.0  # the request has begun
            done = caller.loop.create_future()
            buffer = None
            if request.stream:
                room = Room(hold, free, token_numbers(request), self.limits.reply_numbers)
                buffer = ChunkBuffer(done, waiting_states, room)
            completion = CompletionResponse(caller, served, request, prompts, done, buffer)
            job = Job(
                kind=JobKind.GENERATE,
                items=items,
                loop=caller.loop,
                deliver=completion.deliver,
                done=done,
                state_output=state_output,
                stream=buffer is not None,
                sampling=sampling,
                input_bytes=cost + sum(_text_bytes(prompt.start) for prompt in prompts),
                deadline=deadline,
                priority=served.tenant.priority(request.priority),
                continues=request.echoes_logprobs,
            )
            served.submit(job)
            caller.submitted()
            if caller.observation is not None:
                prompt_tokens = 0 if request.echoes_logprobs else completion.prompt_tokens
                caller.observation.follow(job, prompt_tokens)
            scored, spending.used = spending.used, None
            request.drop_read_fields()  # from now on, only the job refers to unread inputs
            del inputs, prompts, items
            try:
                yield completion
            finally:
                # If the client left or the job failed, the number of steps is unknown. A job that
                # was refused before its first step has used none.
                is_done = done.done() and not done.cancelled()
                error = done.exception() if is_done else None
                if isinstance(error, Refused) and not job.begun:
                    spending.used = scored
                elif request.stream or (is_done and error is None):
                    spending.used = read_tokens + completion.generated
                done.cancel()  # no effect on a job that has ended

    async def _prompts(
        self,
        caller: Caller,
        request: CompletionRequest,
        served: ServedModel,
        inputs: Sequence[str | list[int]],
        cost: int,
    ) -> list[Prompt]:
        """The prompts with their states."""
        starts = await initial_states(caller, request, served, len(inputs), cost)

        def read_slice(first: int, end: int, tokens: Tokens | None) -> list[Prompt]:
            pairs = zip(inputs[first:end], starts[first:end], strict=True)
            return [
                read_prompt(request, served, content, start, tokens) for content, start in pairs
            ]

        return await read_inputs(
            caller,
            served,
            self.limits,
            inputs,
            starts,
            "prompt",
            read_slice,
            locate=request.echoes_logprobs,
        )

    async def _scored(
        self,
        caller: Caller,
        request: CompletionRequest,
        served: ServedModel,
        prompts: Sequence[Prompt],
        deadline: float,
        spending: Spent,
    ) -> list[Prompt]:
        """The prompts with the log-probabilities of their tokens, from a separate scoring job.

        spending: counts their tokens, unless the server refuses to score them.
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
        if caller.observation is not None:
            caller.observation.follow(job)
        spending.used = job.inputs  # also if the client leaves
        try:
            await caller.wait(job.done)
        except Refused:
            spending.used = 0
            raise
        return [
            replace(prompt, logprobs=result.logprobs)
            for prompt, result in zip(prompts, results, strict=True)
        ]

    def _waiting_states(self, request: CompletionRequest, numbers: int) -> int:
        """The states of each choice that may wait for the client. numbers: of a state of each."""
        if not request.state_interval:
            return 1
        return max(1, min(_WAITING_STATES, self.limits.reply_numbers // max(1, numbers)))


def _text_bytes(start: Snapshot | None) -> int:
    """Bytes of the texts in a state, which the choices of a prompt share."""
    return 0 if start is None else len(start.word) + len(start.consumed)
