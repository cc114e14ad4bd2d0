"""The caller of a task: a request over any protocol, and its client."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any, ClassVar

from sruserve.server.budget import Hold
from sruserve.server.metrics.metrics import UNKNOWN_MODEL
from sruserve.server.observation.observation import Description, Observation
from sruserve.server.seeds import random_bytes
from sruserve.server.tasks.limits import FREE_BYTES, InputLimits


class ClientDisconnected(Exception):
    """The client left before its reply was complete."""


class Caller:
    """A request, and the client that waits for its result.

    A protocol calls `leave` when the client leaves. A protocol that must watch for it overrides
    `watch` and `unwatch`.

    authorization: the client's credentials, in the form of HTTP's header of this name; None: none.
    begin: `time.perf_counter()` at the arrival of the request.
    number: the request's id, for replies.
    model: the name of its model, once it is known.
    started: a part of the reply has been sent.
    observation: of this request; None: requests are not observed.
    buffers_reply: the whole reply stays in memory until the request ends, also if it is streamed.
    """

    buffers_reply: ClassVar[bool] = False

    __slots__ = (
        "_body",
        "_disconnected",
        "_running",
        "authorization",
        "begin",
        "loop",
        "model",
        "number",
        "observation",
        "started",
    )

    def __init__(self, authorization: str | None = None) -> None:
        self.authorization = authorization
        self.begin = perf_counter()
        self.loop = asyncio.get_running_loop()
        self.number = random_bytes().hex()  # a counter would tell how many requests others make
        self.model = UNKNOWN_MODEL
        self.started = self._disconnected = False
        self._body: Hold | None = None
        self._running: asyncio.Future[Any] | None = None
        self.observation: Observation | None = None

    def describe(self) -> Description:
        """The request in a log or a trace; called once it has ended."""
        return Description("other", self.number)

    @property
    def disconnected(self) -> bool:
        """Whether the client has left."""
        return self._disconnected

    @property
    def alone(self) -> bool:
        """Whether no other request waits on the event loop, as far as the protocol knows."""
        return False

    def watch(self, done: asyncio.Future[Any]) -> None:
        """Cancel `done` when the client leaves."""
        self._running = done
        if self._disconnected:
            done.cancel()

    def unwatch(self) -> None:
        """Stop watching."""
        self._running = None

    def leave(self) -> None:
        """Cancel the running job, because the client has left."""
        self._disconnected = True
        if self._running is not None:
            self._running.cancel()

    async def wait(self, done: asyncio.Future[Any]) -> None:
        """Wait for a job. If the client leaves first, cancel it and raise `ClientDisconnected`."""
        self.watch(done)
        try:
            await done
        except asyncio.CancelledError:
            if self._disconnected:
                raise ClientDisconnected from None
            raise
        finally:
            self.unwatch()

    def count_body(self, limits: InputLimits, size: int) -> None:
        """Count a long body until `submitted`, or until the request ends; raises `Overloaded`.

        A further call changes its size.
        """
        if self._body is None:
            self._body = limits.count_body(size)
        else:
            self._body.resize(size if size > FREE_BYTES else 0)

    def count_more(self, limits: InputLimits, size: int) -> None:
        """Count further input beside the body, unless it is short; raises `Overloaded`."""
        if self._body is None:
            self._body = limits.count_body(size)
        elif size > FREE_BYTES:
            self._body.grow(size)

    def submitted(self) -> None:
        """Stop counting the body: its job is queued, or the request has ended."""
        body, self._body = self._body, None
        if body is not None:
            body.release()

    def take_body(self, limits: InputLimits, size: int) -> Hold:
        """Hand over the hold on the long body of a step, which may outlive its client.

        The body counts without a gap. size: of the body. If this raises `Overloaded`, nothing is
        handed over.
        """
        if self._body is None:
            self._body = limits.count_body(0)
        if size > max(self._body.amount, FREE_BYTES):
            self._body.resize(size)
        body, self._body = self._body, None
        return body

    def unsent(self, hold: Hold) -> AbstractContextManager[object]:
        """A context in which `hold` counts a reply that is computed and sent."""
        return hold


class StepCaller(Caller):
    """The caller of a stream's step, which continues when its client has left.

    Both the step and the sender of its outcome use it as a context manager, in any order. The
    reply counts as unsent until both have ended.
    """

    buffers_reply = True

    __slots__ = ("_caller", "_holds", "_step", "_users")

    _step: Hold

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self.begin, self.number, self.model = caller.begin, caller.number, caller.model
        self.observation = caller.observation
        self._caller = caller
        self._holds: list[Hold] = []
        self._users = 0

    @property
    def counts(self) -> bool:
        """Whether the reply counts: the step was computed, and not read from the store."""
        return bool(self._holds)

    @property
    def alone(self) -> bool:
        return self._caller.alone

    @contextmanager
    def counted(self, limits: InputLimits, size: int) -> Iterator[None]:
        """Count the step and its body until `submitted`. size: of the body."""
        take = self._caller.take_body
        with self, limits.count_step(size) as self._step, take(limits, size) as self._body:
            yield

    def submitted(self) -> None:
        self._step.release()
        super().submitted()

    async def wait(self, done: asyncio.Future[Any]) -> None:
        """Wait for a job, also if the client leaves."""
        await done

    def watch(self, done: asyncio.Future[Any]) -> None:
        """Do nothing: the job continues when the client leaves."""

    def unwatch(self) -> None:
        """Do nothing, as `watch`."""

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
