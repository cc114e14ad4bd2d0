"""The reply to one completion request, whole or event by event, as its pieces come in."""

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter, time
from typing import Any

from sruserve.server.api.call import Call, json_bytes
from sruserve.server.api.choices import Choice, is_much
from sruserve.server.api.completion_request import CompletionRequest
from sruserve.server.api.events import Outbox, data
from sruserve.server.api.inputs import LONG_CHARACTERS
from sruserve.server.api.long_json import long_json
from sruserve.server.api.prompts import Prompt, echo_numbers
from sruserve.server.api.served import Served
from sruserve.server.engine.jobs import Generated, Keep


class Completion:
    """Collects the pieces of all choices and says what has come.

    prompts: each has the same number of choices.
    done: resolves when the last one has come.
    outbox: takes the pieces of a stream; without one they are kept for `whole`.
    first_text: told how many seconds a stream's client waited for something to read.
    """

    def __init__(
        self,
        call: Call,
        served: Served,
        request: CompletionRequest,
        prompts: Sequence[Prompt],
        done: asyncio.Future[None],
        outbox: Outbox | None,
        first_text: Callable[[float], None],
    ) -> None:
        self.done, self.outbox = done, outbox
        self._first_text: Callable[[float], None] | None = first_text
        self._begin = call.begin
        self._with_ids = served.model.codec is None
        n = request.n or 1
        self._choices = [
            Choice(i * n + k, served, request, prompt)
            for i, prompt in enumerate(prompts)
            for k in range(n)
        ]
        self._unfinished = len(self._choices)
        self.generated = 0  # tokens of all choices, as far as they have come
        self._state_numbers = served.state_numbers(Keep.SNAPSHOT)
        self._echoes_much = echo_numbers(prompts, request) > LONG_CHARACTERS
        self._prompt_tokens = sum(len(prompt.ids) for prompt in prompts)
        self._cached_tokens = sum(prompt.start.steps for prompt in prompts if prompt.start)
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
        self.generated += len(piece.tokens)
        if self.outbox is None:
            self._choices[index].keep(piece)
            return
        if self._first_text is not None and (piece.tokens if self._with_ids else piece.text):
            self._first_text(perf_counter() - self._begin)
            self._first_text = None
        self.outbox.put(index, piece)

    def events(self, pieces: list[tuple[int, Generated]]) -> bytes:
        """One event for each stretch."""
        json = long_json if self.is_much([piece for _, piece in pieces]) else json_bytes
        return b"".join(
            self._head + json(self._choices[index].part(piece)) + self._tail
            for index, piece in pieces
        )

    def parts(self, pieces: list[tuple[int, Generated]]) -> list[dict[str, Any]]:
        """The same as JSON objects; that of the last stretch has the usage."""
        told: list[dict[str, Any]] = []
        for index, piece in pieces:
            told.append({"choices": [self._choices[index].part(piece)]})
            self._unfinished -= piece.finish_reason is not None
        if not self._unfinished:
            told[-1]["usage"] = self._usage()
        return told

    def last_event(self) -> bytes:
        """The event with the usage, if it was asked for."""
        if not self._include_usage:
            return b""
        return data({**self._header, "choices": [], "usage": self._usage()})

    def is_much(self, pieces: Sequence[Generated]) -> bool:
        """Whether making a reply of these would hold up the event loop."""
        states = self._state_numbers * sum(piece.state is not None for piece in pieces)
        return self._echoes_much or states > LONG_CHARACTERS or is_much(pieces)

    @property
    def pieces(self) -> list[Generated]:
        """All that were kept."""
        return [piece for choice in self._choices for piece in choice.pieces]

    def whole(self) -> bytes:
        """The reply to a request that does not stream."""
        choices = [choice.whole() for choice in self._choices]
        json = long_json if self.is_much(self.pieces) else json_bytes
        return json({**self._header, "choices": choices, "usage": self._usage()})

    @property
    def steps(self) -> int:
        """Tokens that were read and generated, as far as they were told."""
        return self._prompt_tokens + sum(choice.tokens for choice in self._choices)

    def _usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self.steps - self._prompt_tokens,
            "total_tokens": self.steps,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }
