"""Who waits for the result of a task, whatever protocol they use."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from os import urandom
from time import perf_counter
from typing import Any, ClassVar

from sruserve.server.budget import Hold
from sruserve.server.metrics.metrics import UNKNOWN_MODEL
from sruserve.server.tasks.limits import FREE_BYTES, InputLimits

# Every process has its own prefix, so that ids differ between workers and restarts.
_prefix = urandom(6).hex()
_numbers = count(1)


class ClientDisconnected(Exception):
    """The client left before its reply was complete."""


class Caller:
    """A request, and the client that waits for its result.

    A protocol calls `leave` when the client leaves; one that has to look for that overrides `watch`
    and `unwatch`.

    begin: `time.perf_counter()` at its arrival.
    number: an id of the request, for replies.
    model: the name of the model that it is for, as far as that is known.
    started: a part of its reply has been sent.
    keeps: its whole reply stays in memory until the request ends, also where it is streamed.
    """

    keeps: ClassVar[bool] = False

    __slots__ = ("_body", "_gone", "_running", "begin", "loop", "model", "number", "started")

    def __init__(self) -> None:
        self.begin = perf_counter()
        self.loop = asyncio.get_running_loop()
        self.number = f"{_prefix}{next(_numbers):08x}"
        self.model = UNKNOWN_MODEL
        self.started = self._gone = False
        self._body: Hold | None = None
        self._running: asyncio.Future[Any] | None = None

    @property
    def authorization(self) -> str | None:
        """Who the client says it is, as HTTP's header of that name does; None: nobody."""
        return None

    @property
    def gone(self) -> bool:
        """Whether the client was seen to leave."""
        return self._gone

    def watch(self, done: asyncio.Future[Any]) -> None:
        """From now on, cancel `done` when the client leaves."""
        self._running = done
        if self._gone:
            done.cancel()

    def unwatch(self) -> None:
        """Stop watching."""
        self._running = None

    def leave(self) -> None:
        """The client has left: nobody waits for what runs."""
        self._gone = True
        if self._running is not None:
            self._running.cancel()

    async def wait(self, done: asyncio.Future[Any]) -> None:
        """Wait for a job. If the client leaves first, withdraw it and raise."""
        self.watch(done)
        try:
            await done
        except asyncio.CancelledError:
            if self._gone:
                raise ClientDisconnected from None
            raise
        finally:
            self.unwatch()

    def count_body(self, limits: InputLimits, size: int) -> None:
        """Count a long body until `submitted`, or until the request ends; raises `Overloaded`.

        Once more: it has another size now.
        """
        if self._body is None:
            self._body = limits.count_body(size)
        else:
            self._body.resize(size if size > FREE_BYTES else 0)

    def count_more(self, limits: InputLimits, size: int) -> None:
        """Count what is read beside the body, unless it is short; raises `Overloaded`."""
        if self._body is None:
            self._body = limits.count_body(size)
        elif size > FREE_BYTES:
            self._body.grow(size)

    def submitted(self) -> None:
        """Count the body no more: its job is in a queue, or the request has ended."""
        body, self._body = self._body, None
        if body is not None:
            body.release()

    def take_body(self, limits: InputLimits, size: int) -> Hold:
        """What counts the long body of a step, whether its client stays or not.

        Its room is not given back in between. size: of the body. Raises `Overloaded`, and takes
        nothing.
        """
        if self._body is None:
            self._body = limits.count_body(0)
        if size > max(self._body.amount, FREE_BYTES):
            self._body.resize(size)
        body, self._body = self._body, None
        return body

    def unsent(self, hold: Hold) -> AbstractContextManager[object]:
        """The time in which a reply is made and sent, which `hold` counts."""
        return hold


class StepCaller(Caller):
    """Stands in for a caller within a step of a stream, which goes on when its client has left.

    Both the step and whoever sends its outcome use it as a context manager, in any order: the
    reply counts as unsent until both have left.
    """

    keeps = True

    __slots__ = ("_caller", "_holds", "_step", "_users")

    _step: Hold

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self.begin, self.number, self.model = caller.begin, caller.number, caller.model
        self._caller = caller
        self._holds: list[Hold] = []
        self._users = 0

    @property
    def counts(self) -> bool:
        """Whether the reply is counted: the step was computed, and not found in the store."""
        return bool(self._holds)

    @contextmanager
    def counted(self, limits: InputLimits, size: int) -> Iterator[None]:
        """The time of the step, which counts with its body of this size until `submitted`."""
        take = self._caller.take_body
        with self, limits.count_step(size) as self._step, take(limits, size) as self._body:
            yield

    def submitted(self) -> None:
        self._step.release()
        super().submitted()

    async def wait(self, done: asyncio.Future[Any]) -> None:
        """Wait for a job, whatever the client does."""
        await done

    def watch(self, done: asyncio.Future[Any]) -> None:
        """Let the job be: its outcome is the step's."""

    def unwatch(self) -> None:
        """Nobody was watched."""

    def unsent(self, hold: Hold) -> AbstractContextManager[object]:
        """Count the reply beyond the block, until it is stored and sent."""
        self._holds.append(hold)
        return nullcontext()

    def __enter__(self) -> None:
        self._users += 1

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users:
            for hold in self._holds:
                hold.release()
