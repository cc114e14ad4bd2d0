"""Server-sent events: what a job delivers, written as fast as the client reads."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from sruserve.server.api.call import Call, ClientGone, json_bytes
from sruserve.server.api.completion_request import CompletionRequest
from sruserve.server.api.problems import as_serve_error
from sruserve.server.budget import Hold
from sruserve.server.engine.jobs import Generated
from sruserve.server.errors import Overloaded, ServeError, faults
from sruserve.server.offload import off_loop

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
EVENT_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
)


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
                f"{self._most} numbers of this stream wait for its client: read faster, or lower "
                "`max_tokens`, `n` or `logprobs`"
            )
        if numbers > self._free:
            self._hold.resize(self._least + numbers - self._free)

    def take(self) -> None:
        """What was taken before has been sent, and all that waits is taken now."""
        self._taken, self._waiting = self._waiting, 0
        self._hold.resize(self._least + max(0, self._taken - self._free))


class Outbox:
    """Stretches that wait for the client. It holds at most what the completions may grow to.

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


class Reply(Protocol):
    """Says what has come."""

    def is_much(self, pieces: Sequence[Generated]) -> bool:
        """Whether making events of these would hold up the event loop."""
        ...

    def events(self, pieces: list[tuple[int, Generated]]) -> bytes: ...
    def last_event(self) -> bytes: ...


async def send_events(
    call: Call,
    done: asyncio.Future[None],
    outbox: Outbox,
    reply: Reply,
    ping_seconds: float,
) -> None:
    """Answer with everything that the job delivers, then the last event, then `[DONE]`.

    An error before the first event becomes an ordinary reply; a later one becomes an event.
    """
    call.watch(done)
    try:
        while (pieces := await next_stretches(call, done, outbox, ping_seconds)) is not None:
            much = reply.is_much([piece for _, piece in pieces])
            await _send(call, await off_loop(much, reply.events, pieces) if pieces else PING)
        await _send(call, reply.last_event() + DONE, more=False)
    except faults() as error:
        if isinstance(error, ClientGone) or not call.started:
            raise
        problem = as_serve_error(error, CompletionRequest)
        await call.send(b"data: " + problem.body() + b"\n\n" + DONE)
        raise problem from error
    finally:
        call.unwatch()
        done.cancel()  # does nothing to a job that has ended


async def next_stretches(
    call: Call, done: asyncio.Future[None], outbox: Outbox, timeout_seconds: float
) -> list[tuple[int, Generated]] | None:
    """What came next; empty if nothing did for so long, None at the job's good end."""
    if pieces := await outbox.take(timeout_seconds):
        return pieces
    if call.gone:
        raise ClientGone
    if done.done():
        done.result()
        return None
    return []


async def _send(call: Call, body: bytes, more: bool = True) -> None:
    if not call.started:
        await call.start(200, list(EVENT_HEADERS))
    await call.send(body, more=more)


def data(value: object) -> bytes:
    """One event that holds a JSON value."""
    return b"data: " + json_bytes(value) + b"\n\n"
