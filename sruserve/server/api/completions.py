"""`POST /v1/completions`: OpenAI's completions, whole or as events, and the state they end in."""

from collections.abc import Callable, Sequence
from time import perf_counter, time
from typing import Any

from sruserve.server.api.call import Call, json_bytes
from sruserve.server.api.choices import Choice, is_much
from sruserve.server.api.events import Outbox, data, send_events
from sruserve.server.api.inputs import encode_input, is_long, sampler_key, split_inputs
from sruserve.server.api.requests import CompletionRequest
from sruserve.server.api.route import Route, off_loop, run_job
from sruserve.server.api.served import Catalogue, InputLimits, Served
from sruserve.server.engine.jobs import Generated, Item, Job, Kind, Sampling
from sruserve.server.errors import InputTooLong, InvalidRequest
from sruserve.server.tenants import Tenants


class CompletionRoute(Route[CompletionRequest]):
    """`n` choices for each prompt: choice `p * n + i` is the i-th of prompt `p`."""

    path, task, schema = "/v1/completions", "generate", CompletionRequest

    def __init__(
        self, catalogue: Catalogue, tenants: Tenants, limits: InputLimits, ping_seconds: float
    ) -> None:
        super().__init__(catalogue, tenants, limits)
        self._ping_seconds = ping_seconds

    async def answer(
        self, call: Call, request: CompletionRequest, served: Served, cost: int
    ) -> None:
        keep = served.keep(request)
        prompts = split_inputs(request.prompt, self.limits, "prompt")
        sampling = self._sampling(request, len(prompts) * (request.n or 1))
        items, prompt_tokens = await self.read(
            is_long(prompts, request.state), cost, self._items, request, served, prompts
        )
        done = call.loop.create_future()
        outbox = Outbox(done) if request.stream else None
        first_text = self.metrics(served.name).first_character
        completion = _Completion(call, served, request, items, prompt_tokens, outbox, first_text)
        job = Job(
            kind=Kind.GENERATE,
            items=items,
            loop=call.loop,
            deliver=completion.deliver,
            done=done,
            keep=keep,
            stream=outbox is not None,
            sampling=sampling,
            cost=cost,
            deadline=self.deadline(request),
        )
        with self.promise(len(items) * served.state_numbers(keep)):
            try:
                if outbox is None:
                    await run_job(call, served, job)
                    await call.reply(await off_loop(completion.is_much(), completion.whole))
                    return
                served.submit(job)
                await send_events(
                    call, done, outbox, completion.events, completion.last_event, self._ping_seconds
                )
            finally:
                served.tenant.charge(completion.steps)

    def _sampling(self, request: CompletionRequest, completions: int) -> Sampling:
        """How to pick tokens, for so many completions; what is too many of either is refused."""
        limits, max_tokens = self.limits, request.token_limit
        if completions > limits.inputs:
            raise InputTooLong(
                f"the prompts times 'n' make {completions} completions, and there may be "
                f"{limits.inputs}; send several requests, or ask the operator to raise "
                "SRUSERVE_MAX_INPUTS",
                param="n",
            )
        if completions * max_tokens > limits.new_tokens:
            raise InvalidRequest(
                f"'max_tokens' is {max_tokens} for each of {completions} completions, and all "
                f"together may have {limits.new_tokens}; continue with `state`, send several "
                "requests, or ask the operator to raise SRUSERVE_MAX_NEW_TOKENS",
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
        starts = served.starts(request, len(prompts))
        items, prompt_tokens = [], 0
        for prompt, start in zip(prompts, starts, strict=True):
            ids, word = encode_input(served, prompt, start, "prompt")
            prompt_tokens += len(ids)
            seed, choice = sampler_key(start, request.seed)
            items += [
                Item(ids, start, word, False, seed, choice + i) for i in range(request.n or 1)
            ]
        return items, prompt_tokens


class _Completion:
    """The reply to one request, as its pieces come in.

    outbox: takes the pieces of a stream; without one they are kept for `whole`.
    first_text: told how many seconds a stream's client waited for something to read.
    """

    def __init__(
        self,
        call: Call,
        served: Served,
        request: CompletionRequest,
        items: Sequence[Item],
        prompt_tokens: int,
        outbox: Outbox | None,
        first_text: Callable[[float], None],
    ) -> None:
        self._outbox = outbox
        self._first_text: Callable[[float], None] | None = first_text
        self._begin = call.begin
        self._with_ids = served.model.codec is None
        with_logprobs = request.logprobs is not None
        self._choices = [
            Choice(i, served, with_logprobs, item.start) for i, item in enumerate(items)
        ]
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
        if self._outbox is None:
            self._choices[index].keep(piece)
            return
        if self._first_text is not None and (piece.tokens if self._with_ids else piece.text):
            self._first_text(perf_counter() - self._begin)
            self._first_text = None
        self._outbox.put(index, piece)

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

    def is_much(self) -> bool:
        """Whether making `whole` would hold up the event loop."""
        return is_much([piece for choice in self._choices for piece in choice.pieces])

    def whole(self) -> bytes:
        """The reply to a request that does not stream."""
        choices = [choice.whole() for choice in self._choices]
        return json_bytes({**self._header, "choices": choices, "usage": self._usage()})

    @property
    def steps(self) -> int:
        """Tokens that were read and generated, as far as they were told."""
        return self._prompt_tokens + sum(choice.tokens for choice in self._choices)

    def _usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self.steps - self._prompt_tokens,
            "total_tokens": self.steps,
        }
