"""`POST /v1/completions`: OpenAI's completions, whole or as events, and the state they end in."""

from collections.abc import Sequence
from secrets import randbits
from time import perf_counter, time
from typing import Any

from sruserve.server.api.call import Call, json_bytes
from sruserve.server.api.choices import Choice
from sruserve.server.api.events import Outbox, data, send_events
from sruserve.server.api.inputs import encode_input, is_long, split_inputs
from sruserve.server.api.route import Route, off_loop, run_job
from sruserve.server.api.schemas import CompletionRequest
from sruserve.server.api.served import Served
from sruserve.server.engine.jobs import Generated, Item, Job, Kind, Sampling
from sruserve.server.errors import InputTooLong, InvalidRequest

SEEDS = 1 << 64


class CompletionRoute(Route[CompletionRequest]):
    """`n` choices for each prompt: choice `p * n + i` is the i-th of prompt `p`."""

    path, task, schema = "/v1/completions", "generate", CompletionRequest
    ping_seconds = 15.0

    async def answer(
        self, call: Call, request: CompletionRequest, served: Served, cost: int
    ) -> None:
        served.check_states(given=request.state is not None, wanted=request.return_state)
        sampling = self._sampling(request)
        prompts = split_inputs(request.prompt, self.limits, "prompt")
        if len(prompts) * (request.n or 1) > self.limits.inputs:
            raise InputTooLong(
                f"{len(prompts)} prompts with n={request.n} are more than {self.limits.inputs} "
                "completions; send several requests",
                param="n",
            )
        items, prompt_tokens = await off_loop(
            is_long(prompts, request.state), self._items, request, served, prompts
        )
        completion = _Completion(call, served, request, len(items), prompt_tokens)
        job = Job(
            kind=Kind.GENERATE,
            items=items,
            loop=call.loop,
            deliver=completion.deliver,
            done=call.loop.create_future(),
            keep_state=request.return_state,
            stream=bool(request.stream),
            sampling=sampling,
            cost=cost,
            deadline=self.deadline(),
        )
        completion.on_first_text = self.metrics[served.name].first_character
        if not request.stream:
            await run_job(call, served, job)
            await call.reply(json_bytes(completion.whole()))
            return
        outbox = completion.outbox = Outbox(job.done)
        served.engine.submit(job)
        await send_events(
            call, job.done, outbox, completion.events, completion.last_event, self.ping_seconds
        )

    def _sampling(self, request: CompletionRequest) -> Sampling:
        max_tokens = 16 if request.max_tokens is None else request.max_tokens
        if max_tokens > self.limits.new_tokens:
            raise InvalidRequest(
                f"'max_tokens' is {max_tokens} and may be {self.limits.new_tokens}; continue with "
                "`state`, or ask the operator to raise SRUSERVE_MAX_NEW_TOKENS",
                param="max_tokens",
            )
        stop = request.stop or ()
        return Sampling(
            max_tokens=max_tokens,
            min_tokens=request.min_tokens,
            temperature=1.0 if request.temperature is None else request.temperature,
            top_k=request.top_k,
            top_p=1.0 if request.top_p is None else request.top_p,
            min_p=request.min_p,
            repetition_penalty=request.repetition_penalty,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            logprobs=request.logprobs,
        )

    def _items(
        self, request: CompletionRequest, served: Served, prompts: Sequence[str | list[int]]
    ) -> tuple[list[Item], int]:
        """The items of all choices, and how many tokens the prompts have."""
        starts = served.open_states(request.state, len(prompts))
        items, prompt_tokens = [], 0
        for prompt, start in zip(prompts, starts, strict=True):
            ids, word = encode_input(served, prompt, start, "prompt")
            prompt_tokens += len(ids)
            if request.seed is not None:
                seed, choice = request.seed % SEEDS, 0
            elif start is not None:
                seed, choice = start.seed, start.choice
            else:
                seed, choice = randbits(63), 0
            items += [Item(ids, start, word, seed, choice + i) for i in range(request.n or 1)]
        return items, prompt_tokens


class _Completion:
    """The reply to one request, as its pieces come in."""

    def __init__(
        self, call: Call, served: Served, request: CompletionRequest, count: int, prompt_tokens: int
    ) -> None:
        self.outbox: Outbox | None = None
        self.on_first_text: Any = None
        self._begin = call.begin
        self._choices = [Choice(i, served, request.logprobs is not None) for i in range(count)]
        self._prompt_tokens = prompt_tokens
        self._header = {
            "id": f"cmpl-{call.number}",
            "object": "text_completion",
            "created": int(time()),
            "model": served.name,
        }
        options = request.stream_options
        self._include_usage = options is not None and options.include_usage
        # all events of a stream begin and end alike
        self._head = b"data: " + json_bytes(self._header)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if self._include_usage else b"]}\n\n"

    def deliver(self, index: int, piece: Any) -> None:
        """Called by the engine, on the loop."""
        if self.on_first_text is not None and piece.tokens:
            self.on_first_text(perf_counter() - self._begin)
            self.on_first_text = None
        if self.outbox is None:
            self._choices[index].keep(piece)
        else:
            self.outbox.put(index, piece)

    def events(self, pieces: list[tuple[int, Generated]]) -> bytes:
        """One event for each stretch."""
        return b"".join(
            self._head + json_bytes(self._choices[index].part(piece)) + self._tail
            for index, piece in pieces
        )

    def last_event(self) -> bytes:
        """The event with the usage, if it was asked for."""
        if not self._include_usage:
            return b""
        return data({**self._header, "choices": [], "usage": self._usage()})

    def whole(self) -> dict[str, Any]:
        """The reply to a request that does not stream."""
        choices = [choice.whole() for choice in self._choices]
        return {**self._header, "choices": choices, "usage": self._usage()}

    def _usage(self) -> dict[str, int]:
        generated = sum(choice.tokens for choice in self._choices)
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self._prompt_tokens + generated,
        }
