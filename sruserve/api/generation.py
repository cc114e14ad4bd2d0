"""A completion as it is written: an iterator of pieces of text, which can be closed."""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, Self

from sruserve.api.completing import Completing
from sruserve.api.event_loop import EventLoop
from sruserve.api.results import Completion

_SHOWN = 60  # characters of a text in a repr


class _Choice:
    """What has been read of one choice so far.

    When the last choice of its call is closed, dropped or cancelled, the job is withdrawn.
    """

    def __init__(self, loop: EventLoop, run: Completing, index: int = 0) -> None:
        self._loop, self._run, self._index = loop, run, index
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: dict[str, list[Any]] | None = None
        self._finish_reason: str | None = None
        self._stop_reason: str | None = None
        self._state: str | None = None
        self._closed = False

    @property
    def text(self) -> str:
        """The text so far."""
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0] if self._texts else ""

    @property
    def token_ids(self) -> list[int]:
        """The token ids of the text so far."""
        return list(self._token_ids)

    @property
    def logprobs(self) -> dict[str, list[Any]] | None:
        """OpenAI's lists of the tokens so far, if the call has `logprobs`."""
        return self._logprobs

    @property
    def finish_reason(self) -> str | None:
        """`stop` or `length`, once the text has ended; None: it has not, or it was closed."""
        return self._finish_reason

    @property
    def stop_reason(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stop_reason

    @property
    def state(self) -> str | None:
        """The token that continues the text, once it has ended, if the call has `return_state`."""
        return self._state

    @property
    def completion(self) -> Completion:
        """What was read so far, as a value."""
        return Completion(
            self.text,
            self._finish_reason,
            self._stop_reason,
            tuple(self._token_ids),
            self._logprobs,
            self._state,
        )

    def _ended(self) -> bool:
        return self._closed or self._finish_reason is not None

    async def _next(self) -> str | None:
        """The next piece, on the model's loop; None: the text has ended."""
        while not self._ended():
            chunk = await self._run.next(self._index)
            if chunk is None:
                self._closed = True
                return None
            self._add(chunk)
            if self._finish_reason is not None:
                await self._run.finish(self._index)
            if chunk["text"]:
                text: str = chunk["text"]
                return text
        return None

    def _add(self, chunk: dict[str, Any]) -> None:
        if chunk["text"]:
            self._texts.append(chunk["text"])
        self._token_ids += chunk["token_ids"]
        if (logprobs := chunk["logprobs"]) is not None:
            if self._logprobs is None:
                self._logprobs = {name: [] for name in logprobs}
            for name, values in logprobs.items():
                self._logprobs[name] += values
        self._finish_reason = chunk["finish_reason"]
        self._stop_reason = chunk.get("stop_reason")
        self._state = chunk.get("state")

    def _leave_soon(self) -> None:
        self._loop.start_soon(partial(self._run.leave, self._index))

    def __del__(self) -> None:
        if not self._ended():
            self._leave_soon()

    def __repr__(self) -> str:
        text = self.text
        shown = repr(text[-_SHOWN:]) if len(text) <= _SHOWN else f"…{text[-_SHOWN:]!r}"
        end = self._finish_reason or ("closed" if self._closed else "not ended")
        return f"<{type(self).__name__} {shown}, {len(self._token_ids)} tokens, {end}>"


class Generation(_Choice, Iterator[str]):
    """A completion: iterate over its pieces of text, or `read` all of it.

    The model writes while its reader does other things. `text` and `token_ids` grow with each
    piece; `finish_reason` and `state` are there at its end. A model without a vocabulary writes
    `token_ids` alone. A `with` block, `close`, Ctrl-C, or dropping it ends it before.
    """

    def __next__(self) -> str:
        if self._ended():
            raise StopIteration
        try:
            piece = self._loop.run(self._next())
        except Exception:
            self._closed = True
            raise
        except BaseException:  # Ctrl-C
            self._closed = True
            self._leave_soon()
            raise
        if piece is None:
            raise StopIteration
        return piece

    def read(self) -> Completion:
        """The whole completion, once it has ended or was closed."""
        for _ in self:
            pass
        return self.completion

    def close(self) -> None:
        """End the completion now; what was read stays."""
        if not self._ended():
            self._closed = True
            self._loop.run(self._run.leave(self._index))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncGeneration(_Choice, AsyncIterator[str]):
    """`Generation` for `async for`. It begins with the first piece that is awaited."""

    async def __anext__(self) -> str:
        if self._ended():
            raise StopAsyncIteration
        try:
            piece = await self._loop.join(self._begin_and_next())
        except BaseException:
            self._closed = True
            self._leave_soon()
            raise
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def _begin_and_next(self) -> str | None:
        await self._run.begin()
        return await self._next()

    async def read(self) -> Completion:
        """The whole completion, once it has ended or was closed."""
        async for _ in self:
            pass
        return self.completion

    async def aclose(self) -> None:
        """End the completion now; what was read stays."""
        if not self._ended():
            self._closed = True
            await self._loop.join(self._run.leave(self._index))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
