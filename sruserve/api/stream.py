"""A stream: one input in chunks, with the state that continues it anywhere."""

from typing import Any, Self, Unpack

from sruserve.api.generation import AsyncGeneration, Generation
from sruserve.api.inputs import One
from sruserve.api.options import SamplingOptions
from sruserve.api.results import StreamResult
from sruserve.api.stream_state import StreamState


class _Stream:
    """What both forms of a stream share."""

    def __init__(self, state: StreamState) -> None:
        self._at = state

    @property
    def state(self) -> str | None:
        """The sealed token that continues the stream: here, in another process, or on a server.

        A server with the same `SRUSERVE_STATE_KEYS` and weights opens it as `state`, and its tokens
        are opened here. None: nothing was read yet. Raises `StateTooLarge` for a state that no
        token can hold.
        """
        return self._at.token

    @property
    def steps(self) -> int:
        """Tokens, or rows of features, that it has read."""
        return self._at.steps

    def fork(self, count: int = 1) -> list[Self]:
        """Streams that continue from here on their own; this one stays as it is.

        They share the sampler's seed, so give completions that shall differ a `seed` each.
        """
        return [type(self)(state) for state in self._at.forks(count)]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._at.local.served.name}, {self.steps:,} steps>"


class Stream(_Stream):
    """Reads one input in chunks: any split of it has the results of the whole."""

    def send(self, chunk: One, *, more: bool = False, **fields: Any) -> StreamResult:
        """Read the next chunk, and return the result so far, of the kind of the model's task.

        A language model returns the `Score` of the chunk.

        more: more of this text follows, so hold back an unfinished word, as in
            `send("How far is it from Den", more=True)`. Otherwise the last word is read as whole;
            the stream can continue with new words.
        fields: of the task, such as `raw_scores` or `steps_ahead`.

        Raises `ServeError`; the stream then stays where it was.
        """
        return self._at.local.loop.run(self._at.send(chunk, more, fields))

    def generate(self, prompt: One = "", **options: Unpack[SamplingOptions]) -> Generation:
        """Continue the stream with a text; a `prompt` is read before.

        When the completion has ended, the stream is after it. One that is closed before leaves the
        stream where it was.
        """
        run = self._at.completing(prompt, dict(options))
        self._at.local.loop.run(run.begin())
        return Generation(self._at.local.loop, run)


class AsyncStream(_Stream):
    """`Stream` with awaitable methods."""

    async def send(self, chunk: One, *, more: bool = False, **fields: Any) -> StreamResult:
        """See `Stream.send`."""
        return await self._at.local.loop.join(self._at.send(chunk, more, fields))

    def generate(self, prompt: One = "", **options: Unpack[SamplingOptions]) -> AsyncGeneration:
        """See `Stream.generate`; the completion begins with its first piece."""
        return AsyncGeneration(self._at.local.loop, self._at.completing(prompt, dict(options)))
