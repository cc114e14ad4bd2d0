"""The translations of one request, as a whole or while they grow."""

import asyncio
import codecs
from collections.abc import Sequence
from typing import Any

from sruserve.model.text.codec import pieces_after
from sruserve.model.translation.text import SideText
from sruserve.server.engine.job import Translated
from sruserve.server.repository.served_translator import ServedTranslator
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.chunks import ChunkBuffer, next_chunks
from sruserve.server.tasks.inputs import LONG_CHARACTERS

Pieces = Sequence[tuple[int, Translated]]


class Translation:
    """Collects the results of all texts.

    done: resolves after the last result. numbers: of the reply, about, at most.
    buffer: gets what a stream has to send. steps: of the results that have arrived.
    """

    def __init__(
        self,
        caller: Caller,
        served: ServedTranslator,
        done: asyncio.Future[None],
        count: int,
        buffer: ChunkBuffer[Translated] | None,
        numbers: int,
    ) -> None:
        self.model, self.done, self.numbers, self.steps = served.name, done, numbers, 0
        self._caller, self._buffer = caller, buffer
        self._results: list[Any] = [None] * count
        self._writers = [_Writer(served.model.target_text) for _ in range(count if buffer else 0)]

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
        text, ids = self._writers[index].write(piece.tokens, final=last is not None)
        return {
            "index": index,
            "text": text,
            "token_ids": ids,
            "finish_reason": None if last is None else last.finish_reason,
            "score": None if last is None else last.score,
            "log_probability": None if last is None else last.log_probability,
        }

    def is_large(self, pieces: Sequence[Translated]) -> bool:
        """Whether encoding these would block the event loop."""
        return sum(len(piece.tokens) for piece in pieces) > LONG_CHARACTERS


def written(
    text: SideText | None, ids: list[int], earlier: int, *, ends: bool
) -> tuple[str | None, list[int] | None]:
    """The text of a translation behind its `earlier` first ids; without a vocabulary, its ids.

    ends: whether it ends with the ids behind these.
    """
    if text is None:
        return None, ids[earlier:]
    if ends and not earlier:
        return text.decode(ids), None
    writer = _Writer(text)
    writer.write(ids[:earlier], final=False)
    return writer.write(ids[earlier:], final=ends)


class _Writer:
    """Writes the text of one translation token by token: all of it is what `decode` gives."""

    def __init__(self, text: SideText | None) -> None:
        self._text = text
        self._pieces = () if text is None else pieces_after(text.codec, -1)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begins = True

    def write(self, ids: Sequence[int], *, final: bool) -> tuple[str | None, list[int] | None]:
        """The text of further tokens; without a vocabulary, their ids."""
        if self._text is None:
            return None, list(ids)
        own = [i for i in ids if i not in self._text.special]
        written = self._decoder.decode(b"".join([self._pieces[i] for i in own]), final)
        if self._begins and written:
            self._begins, written = False, written.removeprefix(" ")
        return written, None
