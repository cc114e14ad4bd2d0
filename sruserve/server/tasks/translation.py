"""The translations of one request, as a whole or while they grow."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sruserve.server.engine.results import Translated
from sruserve.server.offload import LONG_CHARACTERS
from sruserve.server.repository.served_translator import ServedTranslator
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.chunks import ChunkBuffer, next_chunks
from sruserve.server.tasks.translation_sources import Source
from sruserve.server.tasks.translation_text import TranslationWriter

Pieces = Sequence[tuple[int, Translated]]


class Translation:
    """Collects the results of all texts.

    done: resolves after the last result. numbers: of the reply, about, at most.
    state_numbers: of its states alone. buffer: gets what a stream has to send.
    steps: of the results that have arrived.
    """

    def __init__(
        self,
        caller: Caller,
        served: ServedTranslator,
        done: asyncio.Future[None],
        sources: Sequence[Source],
        buffer: ChunkBuffer[Translated] | None,
        numbers: int,
        state_numbers: int,
    ) -> None:
        self.model, self.done, self.steps = served.name, done, 0
        self.numbers, self.state_numbers = numbers, state_numbers
        self._caller, self._served, self._buffer = caller, served, buffer
        self._results: list[Any] = [None] * len(sources)
        text, streamed = served.model.target_text, sources if buffer is not None else ()
        self._writers = [TranslationWriter(text, source.before) for source in streamed]

    @property
    def complete(self) -> bool:
        """Whether all results have arrived."""
        return all(result is not None for result in self._results)

    def deliver(self, index: int, result: Any) -> None:
        """Add a result or a chunk of one; the engine calls it on the event loop."""
        if result.hypotheses:
            self._results[index] = result
            self.steps += result.steps
        if self._buffer is not None:
            self._buffer.put(index, result)

    async def results(self) -> Sequence[Translated]:
        """All results of a request that does not stream, once they are complete."""
        await self._caller.wait(self.done)
        return self._results

    async def next_chunks(self, timeout_seconds: float) -> Pieces | None:
        """What a stream has to send next; empty after the timeout, None at the end."""
        assert self._buffer is not None, "the request does not stream"
        return await next_chunks(self._caller, self._buffer, self.done, timeout_seconds)

    def part(self, index: int, piece: Translated) -> dict[str, Any]:
        """A chunk of one translation in plain values."""
        last = piece.hypotheses[0] if piece.hypotheses else None
        reason = None if last is None else last.finish_reason
        text, ids = self._writers[index].write(piece.tokens, ends=reason is not None)
        return {
            "index": index,
            "text": text,
            "token_ids": ids,
            "finish_reason": reason,
            "score": None if last is None else last.score,
            "log_probability": None if last is None else last.log_probability,
        }

    def states(self) -> list[dict[str, Any]]:
        """For each text that continues after a stream, a chunk with its state and no text."""
        return [
            self.part(index, replace(result, tokens=()))
            | {"state": self._served.states.seal(result.partial)}
            for index, result in enumerate(self._results)
            if result.partial is not None
        ]

    def is_large(self, pieces: Sequence[Translated]) -> bool:
        """Whether encoding these would block the event loop."""
        return sum(len(piece.tokens) for piece in pieces) > LONG_CHARACTERS
