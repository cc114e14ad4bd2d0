"""The completions of one request, as a whole or chunk by chunk."""

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from sruserve.server.engine.results import Generated
from sruserve.server.engine.snapshot import StateOutput
from sruserve.server.metrics.metrics import character_gap, first_character
from sruserve.server.offload import LONG_CHARACTERS, offload
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.choices import ChoiceBuilder, is_large
from sruserve.server.tasks.chunks import ChunkBuffer, next_chunks
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.prompts import Prompt, echo_numbers

Chunks = Sequence[tuple[int, Generated]]


class CompletionResponse:
    """Collects the chunks of all choices.

    prompts: each has the same number of choices.
    done: resolves after the last chunk.
    buffer: gets the chunks of a stream; without it, they are kept for `choices`.
    prompt_tokens: of all prompts. generated: the tokens of all choices so far.
    large: once `choices` has returned, whether making a reply of them would block the event loop.
    """

    large: bool

    def __init__(
        self,
        caller: Caller,
        served: ServedModel,
        request: CompletionRequest,
        prompts: Sequence[Prompt],
        done: asyncio.Future[None],
        buffer: ChunkBuffer[Generated] | None,
    ) -> None:
        self.model, self.done, self._buffer = served.name, done, buffer
        self._caller = caller
        self._with_ids = served.model.codec is None
        self._text_at: dict[int, float] = {}  # when a choice's last text arrived
        n = request.n or 1
        self._choices = [
            ChoiceBuilder(i * n + k, served, request, prompt)
            for i, prompt in enumerate(prompts)
            for k in range(n)
        ]
        self.generated = 0
        self._state_numbers = served.state_numbers(StateOutput.COPY)
        self._large_echo = echo_numbers(prompts, request) > LONG_CHARACTERS
        self.prompt_tokens = sum(len(prompt.ids) for prompt in prompts)
        self._cached_tokens = sum(prompt.start.steps for prompt in prompts if prompt.start)

    def deliver(self, index: int, chunk: Any) -> None:
        """Add a chunk; the engine calls it on the event loop."""
        self.generated += len(chunk.tokens)
        if self._buffer is None:
            self._choices[index].add(chunk)
            return
        if chunk.tokens if self._with_ids else chunk.text:
            self._record_text(index, perf_counter())
        self._buffer.put(index, chunk)

    def _record_text(self, index: int, now: float) -> None:
        if not self._text_at:
            first_character(self.model, now - self._caller.begin)
        elif index in self._text_at:
            character_gap(self.model)(now - self._text_at[index])
        self._text_at[index] = now

    async def next_chunks(self, timeout_seconds: float) -> Chunks | None:
        """The next chunks of a streamed request: see `next_chunks`."""
        assert self._buffer is not None, "the request does not stream"
        return await next_chunks(self._caller, self._buffer, self.done, timeout_seconds)

    async def choices(self) -> list[dict[str, Any]]:
        """All choices of a request that does not stream, once they are complete."""
        await self._caller.wait(self.done)
        self.large = self.is_large([chunk for choice in self._choices for chunk in choice.pieces])
        return await offload(self.large, self._whole, caller=self._caller)

    def _whole(self) -> list[dict[str, Any]]:
        return [choice.whole() for choice in self._choices]

    def choice(self, index: int, chunk: Generated) -> dict[str, Any]:
        """A chunk of one choice, in OpenAI's fields."""
        return self._choices[index].part(chunk)

    def is_large(self, chunks: Sequence[Generated]) -> bool:
        """Whether making a reply of these chunks would block the event loop."""
        states = self._state_numbers * sum(chunk.state is not None for chunk in chunks)
        return self._large_echo or states > LONG_CHARACTERS or is_large(chunks)

    @property
    def usage(self) -> dict[str, Any]:
        """The tokens of the prompts and of all chunks so far, in OpenAI's fields."""
        tokens = sum(choice.tokens for choice in self._choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": self.prompt_tokens + tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }
