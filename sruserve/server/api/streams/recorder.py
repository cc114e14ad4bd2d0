"""A call whose reply is also kept, and which goes on when its client has left."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Self

from sruserve.server.api.call import Call
from sruserve.server.api.limits import InputLimits
from sruserve.server.budget import Hold


class Recorder(Call):
    """Stands in for `call` while a route answers it within a step of a stream.

    Events go on to the client as they come, all but the last, which is the step's outcome; any
    other reply is only kept.

    Both the step and whoever sends its outcome use it as a context manager, in any order: the
    reply counts as unsent until both have left.

    heard: the client is still there.
    """

    __slots__ = ("_call", "_headers", "_holds", "_kept", "_users", "heard", "last")
    keeps = True

    def __init__(self, call: Call) -> None:
        self.begin, self.loop, self.number = call.begin, call.loop, call.number
        self.model, self.started, self._gone = call.model, False, False
        self._scope, self._receive, self._send = call._scope, call._receive, call._send
        self._watcher = self._body = None
        self._call = call
        self._kept: list[bytes] = []
        self._holds: list[Hold] = []
        self._users = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self.last = b""
        self.heard = True

    @property
    def kept(self) -> bytes:
        """The body of the whole reply."""
        return b"".join(self._kept)

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Remember how the reply begins."""
        del status  # an error is raised, and everything else is a 200
        self.started = True
        self._headers = headers

    async def send(self, body: bytes, *, more: bool = False) -> None:
        """Keep a part of the reply, and pass it on unless it is the last."""
        self._kept.append(body)
        if not more:
            self.last = body
        elif self.heard:
            if not self._call.started:
                await self._call.start(200, self._headers)
            await self._call.send(body, more=True)

    @contextmanager
    def counted(self, limits: InputLimits, size: int) -> Iterator[None]:
        """The time of the step, which counts with its body of this size until `submitted`."""
        with self, self._call.take_body(limits, size) as self._body:
            yield

    async def wait(self, done: asyncio.Future[Any]) -> None:
        """Wait for a job, whatever the client does."""
        await done

    def unsent(self, hold: Hold) -> AbstractContextManager[object]:
        """Count the reply beyond the block, until it is stored and sent."""
        self._holds.append(hold)
        return nullcontext()

    def __enter__(self) -> Self:
        self._users += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users:
            for hold in self._holds:
                hold.release()

    def watch(self, done: asyncio.Future[Any]) -> None:
        """Let the job be: its outcome is the step's."""

    def unwatch(self) -> None:
        """Nobody was watched."""
