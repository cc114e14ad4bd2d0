"""Buffer the chunks of a streamed completion until its client takes them."""

import asyncio
from collections import deque
from dataclasses import replace
from typing import Generic, TypeVar

from sruserve.server.budget import Hold
from sruserve.server.engine.results import Generated, Translated
from sruserve.server.errors import Overloaded, ServeError
from sruserve.server.tasks.caller import Caller, ClientDisconnected

Piece = TypeVar("Piece", Generated, Translated)


class Room:
    """Counts the tokens of one stream that its client has not taken yet.

    hold: grows by the numbers beyond `free`, which it already includes.
    numbers_per_token: in the reply. limit: of waiting numbers.
    """

    def __init__(self, hold: Hold, free: int, numbers_per_token: int, limit: int) -> None:
        self._hold, self._least = hold, hold.amount
        self._free, self._numbers_per_token, self._limit = free, numbers_per_token, limit
        self._waiting = 0  # numbers in the buffer
        self._taken = 0  # numbers that are being sent

    def put(self, tokens: int) -> None:
        """Count new tokens in the buffer; raises `Overloaded`."""
        self._waiting += tokens * self._numbers_per_token
        numbers = self._waiting + self._taken
        if numbers > self._limit:
            raise Overloaded(
                f"more than {self._limit} numbers of this stream wait for its client: read "
                "faster, or lower `max_tokens`, `n` or `logprobs`"
            )
        if numbers > self._free:
            self._hold.resize(self._least + numbers - self._free)

    def take(self) -> None:
        """Take all waiting tokens; those that were taken before have been sent."""
        self._taken, self._waiting = self._waiting, 0
        self._hold.resize(self._least + max(0, self._taken - self._free))


class ChunkBuffer(Generic[Piece]):
    """The chunks of a stream that wait for its client.

    max_states: waiting states of each completion; if the client reads slowly, older states are
        dropped.
    room: limits all chunks; if the client reads too slowly, the stream ends with an error.
    """

    def __init__(self, done: asyncio.Future[None], max_states: int, room: Room) -> None:
        self._loop = done.get_loop()
        self._done = done
        self._max_states = max_states
        self._room = room
        self._problem: ServeError | None = None
        self._pieces: list[tuple[int, Piece]] = []
        self._states: dict[int, deque[int]] = {}  # places of each completion's states in `_pieces`
        self._waiter: asyncio.Future[None] | None = None
        done.add_done_callback(self._wake)

    def put(self, index: int, piece: Piece) -> None:
        """Add a chunk; the engine calls it on the event loop."""
        try:
            self._room.put(len(piece.tokens))
        except ServeError as problem:
            self._problem = problem
            self._pieces.clear()
            self._done.cancel()
            return
        if piece.state is not None:
            places = self._states.setdefault(index, deque())
            places.append(len(self._pieces))
            if len(places) > self._max_states:
                earlier = places.popleft()
                self._pieces[earlier] = (index, replace(self._pieces[earlier][1], state=None))
        self._pieces.append((index, piece))
        self._wake()

    async def take(self, timeout_seconds: float) -> list[tuple[int, Piece]]:
        """All waiting chunks; empty when the job has ended, or after the timeout.

        Raises `Overloaded` if the client reads too slowly.
        """
        if not self._pieces and not self._done.done():
            self._waiter = self._loop.create_future()
            timer = self._loop.call_later(timeout_seconds, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
        if self._problem is not None:
            raise self._problem
        self._room.take()
        pieces, self._pieces = self._pieces, []
        self._states.clear()
        return pieces

    def _wake(self, _: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def next_chunks(
    caller: Caller, buffer: ChunkBuffer[Piece], done: asyncio.Future[None], timeout_seconds: float
) -> list[tuple[int, Piece]] | None:
    """The next chunks of a streamed request; empty after the timeout, None at the end.

    The caller must be watched meanwhile. Raises the error that ended the job.
    """
    if chunks := await buffer.take(timeout_seconds):
        return chunks
    if caller.disconnected:
        raise ClientDisconnected
    if done.done():
        done.result()
        return None
    return []
