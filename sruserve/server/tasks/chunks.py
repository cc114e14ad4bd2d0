"""What a job delivers bit by bit, until its client takes it."""

import asyncio
from collections import deque
from dataclasses import replace

from sruserve.server.budget import Hold
from sruserve.server.engine.job import Generated
from sruserve.server.errors import Overloaded, ServeError


class Room:
    """Counts the tokens of one stream that its client has not taken yet.

    hold: grows by the numbers that are beyond `free`, which it holds already.
    each: numbers of a token. most: numbers that may wait.
    """

    def __init__(self, hold: Hold, free: int, each: int, most: int) -> None:
        self._hold, self._least = hold, hold.amount
        self._free, self._each, self._most = free, each, most
        self._waiting = 0  # numbers that nobody has asked for yet
        self._taken = 0  # numbers that are being sent

    def put(self, tokens: int) -> None:
        """Count tokens that wait from now on; raises `Overloaded`."""
        self._waiting += tokens * self._each
        numbers = self._waiting + self._taken
        if numbers > self._most:
            raise Overloaded(
                f"more than {self._most} numbers of this stream wait for its client: read "
                "faster, or lower `max_tokens`, `n` or `logprobs`"
            )
        if numbers > self._free:
            self._hold.resize(self._least + numbers - self._free)

    def take(self) -> None:
        """What was taken before has been sent, and all that waits is taken now."""
        self._taken, self._waiting = self._waiting, 0
        self._hold.resize(self._least + max(0, self._taken - self._free))


class ChunkBuffer:
    """Chunks that wait for the client, at most as much as the completions may grow to.

    most_states: of each completion; a client that is behind does without the earlier ones.
    room: bounds all of them: a client that is further behind gets an error, and no more.
    """

    def __init__(self, done: asyncio.Future[None], most_states: int, room: Room) -> None:
        self._loop = done.get_loop()
        self._done = done
        self._most_states = most_states
        self._room = room
        self._problem: ServeError | None = None
        self._pieces: list[tuple[int, Generated]] = []
        self._states: dict[int, deque[int]] = {}  # where in `_pieces` a completion's states are
        self._waiter: asyncio.Future[None] | None = None
        done.add_done_callback(self._wake)

    def put(self, index: int, piece: Generated) -> None:
        """Called by the engine, on the loop."""
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
            if len(places) > self._most_states:
                earlier = places.popleft()
                self._pieces[earlier] = (index, replace(self._pieces[earlier][1], state=None))
        self._pieces.append((index, piece))
        self._wake()

    async def take(self, timeout_seconds: float) -> list[tuple[int, Generated]]:
        """All that waits; empty when the job has ended, or when nothing came for so long.

        Raises `Overloaded` if the client has taken too little for too long.
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
