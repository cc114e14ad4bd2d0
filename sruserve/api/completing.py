"""A running completion, on the model's loop: each choice is read on its own."""

import asyncio
from collections import deque
from contextlib import AsyncExitStack
from typing import Any, Protocol, Self

from sruserve.api.calls import check_task
from sruserve.api.inputs import Inputs
from sruserve.api.local_model import LocalModel, make_request
from sruserve.server.errors import Draining, InvalidRequest, ModelClosed
from sruserve.server.offload import offload
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.completion import Chunks
from sruserve.server.tasks.completion_request import CompletionRequest

_WAIT_SECONDS = 3600.0  # a turn of waiting for the next chunk, which may take for ever


class Continued(Protocol):
    """A stream that a completion continues."""

    def enter(self, stack: AsyncExitStack) -> ServedModel:
        """Take the stream until the stack is closed; the view for the request."""

    def advance(self) -> None:
        """Go to the state after the completion, which has ended."""


class Completing:
    """The chunks of a completion's choices, in OpenAI's fields, as they arrive.

    The job runs from `begin` until its last chunk, or until all readers have left.

    prompts: times `n` are the choices; `p * n + i` is the i-th of prompt p.
    stream: which it continues.
    """

    def __init__(
        self,
        local: LocalModel,
        request: CompletionRequest,
        prompts: int,
        stream: Continued | None = None,
    ) -> None:
        self._local, self._request = local, request
        self._stack = AsyncExitStack()
        self._chunks = [deque[dict[str, Any]]() for _ in range(prompts * (request.n or 1))]
        self._reading = asyncio.Lock()
        self._stream = stream
        self._left: set[int] = set()
        self._finished: set[int] = set()
        self._begun = self._ended = self._closed = False
        self._error: BaseException | None = None

    @classmethod
    def of(
        cls,
        local: LocalModel,
        prompt: Any,
        fields: dict[str, Any],
        stream: Continued | None = None,
    ) -> Self:
        """A completion of one or several prompts; it does not run yet. Raises `ServeError`."""
        check_task(local.served, CompletionRequest)
        inputs = Inputs(prompt, state=fields.pop("state", None))
        (piece,) = inputs.pieces(1 << 62) if inputs.values else ({"input": []},)
        if "features" in piece:
            raise InvalidRequest(
                "a prompt has no features: give a text or token ids", param="prompt"
            )
        piece["prompt"] = piece.pop("input")
        bias = fields.get("logit_bias")
        if bias is not None:
            fields["logit_bias"] = {str(token): value for token, value in bias.items()}
        for name in ("stop", "allowed_token_ids"):
            if isinstance(fields.get(name), tuple):
                fields[name] = list(fields[name])
        request = make_request(
            CompletionRequest, **piece, **fields, stream=True, return_token_ids=True
        )
        return cls(local, request, len(inputs.values), stream)

    @property
    def choices(self) -> int:
        """The number of choices."""
        return len(self._chunks)

    async def begin(self) -> None:
        """Submit the job, the first time; raises `ServeError`."""
        async with self._reading:
            if self._begun:
                return
            self._begun = True
            try:
                view = self._stream.enter(self._stack) if self._stream is not None else None
                run = self._local.complete(self._request, view)
                caller, self._completion = await self._stack.enter_async_context(run)
                self._completion.done.add_done_callback(_read_error)  # also if no reader asks
                caller.watch(self._completion.done)
            except BaseException:
                self._ended = True
                await self._stack.aclose()
                raise

    async def next(self, choice: int) -> dict[str, Any] | None:
        """The next chunk of a choice; None after the last one. Raises the error of the job."""
        chunks = self._chunks[choice]
        while not chunks:
            if self._error is not None:
                raise self._error
            if self._ended or self._closed:
                return None
            async with self._reading:
                if not (chunks or self._ended or self._closed):
                    await self._read()
        return chunks.popleft()

    async def finish(self, choice: int) -> None:
        """The reader of a choice has its last chunk."""
        self._finished.add(choice)
        if len(self._finished) < self.choices:
            await self.leave(choice)
            return
        while not self._ended:
            async with self._reading:
                await self._read()

    async def leave(self, choice: int) -> None:
        """The reader of a choice has left; the last one to leave withdraws the job."""
        self._left.add(choice)
        if len(self._left | self._finished) == self.choices:
            self._closed = True
            await self._stack.aclose()

    async def _read(self) -> None:
        """Read the chunks that have arrived, of all choices."""
        try:
            chunks = await self._completion.next_chunks(_WAIT_SECONDS)
            if chunks is None:
                self._ended = True
                if self._stream is not None:
                    self._stream.advance()
                await self._stack.aclose()
                return
            for (index, _), chunk in zip(chunks, await self._described(chunks), strict=True):
                self._chunks[index].append(chunk)
        except asyncio.CancelledError:
            if not self._closed:  # the reader has left, and not this completion
                raise
            self._ended = True
        except Exception as error:
            self._error = ModelClosed() if isinstance(error, Draining) else error
            self._ended = True
            await self._stack.aclose()

    async def _described(self, chunks: Chunks) -> list[dict[str, Any]]:
        completion = self._completion

        def describe() -> list[dict[str, Any]]:
            return [completion.choice(index, chunk) for index, chunk in chunks]

        return await offload(completion.is_large([chunk for _, chunk in chunks]), describe)


def _read_error(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.exception()
